//! What `rollcall --version` says: the version, the commit, and the features of the build.
//!
//! `make dist` and the Dockerfile pass the commit. In an archive made by git the file `commit` holds it; in a clone
//! that file is a placeholder, and a build by hand names no commit.

use std::sync::LazyLock;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let given = option_env!("ROLLCALL_COMMIT").unwrap_or(include_str!("commit"));
    text_of(env!("CARGO_PKG_VERSION"), given.trim(), cfg!(feature = "broker"))
});

pub(super) fn text() -> &'static str {
    &TEXT
}

fn text_of(version: &str, commit: &str, has_broker: bool) -> String {
    let is_commit = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let commit = if is_commit { format!("commit {commit}, ") } else { String::new() };
    let broker = if has_broker { "with" } else { "without" };
    format!("{version} ({commit}{broker} the in-process broker)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_its_commit_where_that_is_known_and_its_features() {
        let cases = [
            ("0123abcd", true, "1.2.3 (commit 0123abcd, with the in-process broker)"),
            ("$Format:%H$", true, "1.2.3 (with the in-process broker)"),
            ("", false, "1.2.3 (without the in-process broker)"),
        ];
        for (commit, has_broker, expected) in cases {
            assert_eq!(text_of("1.2.3", commit, has_broker), expected);
        }
    }
}
