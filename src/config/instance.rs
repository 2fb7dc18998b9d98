//! Checks the name of this instance, or generates one.

use super::file::Instance;
use super::problem::Problems;

/// The longest name, in characters.
const MAX_NAME: usize = 64;

/// The file in which Linux has the name of the machine.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

pub(super) fn name(instance: &Instance, problems: &mut Problems) -> String {
    if instance.name.is_empty() {
        return made_up(&host());
    }
    if instance.name.len() > MAX_NAME || !instance.name.chars().all(is_plain) {
        let text = format!("{:?} is not a name; write 1 to {MAX_NAME} of A-Z a-z 0-9 . _ -", instance.name);
        problems.error("instance.name", text);
    }
    instance.name.clone()
}

/// The name of the machine; empty if it has none.
pub(super) fn host() -> String {
    std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned()
}

/// The name of the machine, for operators, and a random number: several instances may run on one
/// machine, and an instance is another one after a restart.
fn made_up(host: &str) -> String {
    let host: String = host.trim().chars().filter(|c| is_plain(*c)).take(MAX_NAME - 9).collect();
    let host = if host.is_empty() { "rollcall" } else { &host };
    format!("{host}-{:08x}", rand::random::<u32>())
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_name_begins_with_that_of_the_machine_and_is_unique() {
        for (host, begin) in [("node-1\n", "node-1-"), ("", "rollcall-"), (&"ü".repeat(99), "rollcall-")] {
            let name = made_up(host);
            assert!(name.starts_with(begin), "{name}");
            assert_ne!(name, made_up(host));
        }
        let mut problems = Problems::default();
        let name = made_up(&"x".repeat(300));
        assert_eq!(super::name(&Instance { name: name.clone() }, &mut problems), name);
        assert!(problems.errors.is_empty(), "a generated name is valid");
    }

    #[test]
    fn an_invalid_name_is_refused() {
        for bad in ["a b", "ü", "a/b", &"x".repeat(65)] {
            let mut problems = Problems::default();
            super::name(&Instance { name: bad.to_owned() }, &mut problems);
            assert_eq!(problems.errors.len(), 1, "{bad}");
        }
    }
}
