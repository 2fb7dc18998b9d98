//! What `rollcall --version` says: the version, the commit, and the features of the build.

/// The text, with the first of `commits` that is one.
pub(super) fn text(commits: &[&str]) -> String {
    text_of(env!("CARGO_PKG_VERSION"), commits, cfg!(feature = "broker"))
}

fn text_of(version: &str, commits: &[&str], has_broker: bool) -> String {
    let is_commit = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let commit = commits.iter().map(|text| text.trim()).find(is_commit);
    let commit = commit.map(|commit| format!("commit {commit}, ")).unwrap_or_default();
    let broker = if has_broker { "with" } else { "without" };
    format!("{version} ({commit}{broker} the in-process broker)")
}

/// The commit that was checked out last, from the reflog of git, whose lines are `OLD NEW NAME <MAIL> …`; spaces without one.
pub const fn last_commit(reflog: &[u8]) -> [u8; 40] {
    let mut commit = [b' '; 40];
    let mut line = reflog.len().saturating_sub(1);
    while line > 0 && reflog[line - 1] != b'\n' {
        line -= 1;
    }
    let new = line + commit.len() + 1;
    let mut at = 0;
    while at < commit.len() && new + at < reflog.len() {
        commit[at] = reflog[new + at];
        at += 1;
    }
    commit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_its_commit_where_that_is_known_and_its_features() {
        let cases: [(&[&str], bool, &str); 4] = [
            (&["", "0123abcd\n", "ff"], true, "1.2.3 (commit 0123abcd, with the in-process broker)"),
            (&["$Format:%H$"], true, "1.2.3 (with the in-process broker)"),
            (&[" ", "", "main"], false, "1.2.3 (without the in-process broker)"),
            (&[], false, "1.2.3 (without the in-process broker)"),
        ];
        for (commits, has_broker, expected) in cases {
            assert_eq!(text_of("1.2.3", commits, has_broker), expected);
        }
    }

    #[test]
    fn the_last_line_of_a_reflog_has_the_commit_that_is_checked_out() {
        let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        let line =
            |old: &str, new: &str| format!("{old} {new} ana <ana@example.org> 1796046443 +0000\tcommit: x\n");
        for (reflog, expected) in [
            (String::new(), ""),
            ("\n".to_owned(), ""),
            (line(&a, &b), &*b),
            (line(&a, &b) + &line(&b, &c), &*c),
            (line(&a, &b) + line(&b, &c).trim_end(), &*c),
        ] {
            let commit = last_commit(reflog.as_bytes());
            assert_eq!(str::from_utf8(&commit).unwrap().trim(), expected, "{reflog:?}");
        }
    }
}
