//! The scripts: each is one step, applied in full or not at all.
//!
//! # Why each script begins with a check of rights
//! Redis does not undo a script that fails: a record would be written without its outbox entry, and receivers would
//! never be notified. In Redis 7 and Valkey a script can check the rights of its user. For an older server the
//! examination names the missing rights within a minute, and the service is not ready until then.

use std::fmt::Write;

use redis::Script;

use super::rights::COMMANDS;

/// The script that renews leases, for a test that compares it with the rule.
#[doc(hidden)]
pub const RENEW: &str = include_str!("scripts/renew.lua");

/// All scripts, hashed once. A script that is unknown to the server is loaded and run again.
pub struct Scripts {
    pub apply: Script,
    pub write_if_unchanged: Script,
    pub write_cells: Script,
    pub keep_values: Script,
    pub raise: Script,
    pub renew: Script,
    pub range_after: Script,
}

impl Scripts {
    pub fn new() -> Scripts {
        Scripts {
            apply: guarded(include_str!("scripts/apply.lua")),
            write_if_unchanged: guarded(include_str!("scripts/write_if_unchanged.lua")),
            write_cells: guarded(include_str!("scripts/write_cells.lua")),
            keep_values: guarded(include_str!("scripts/keep_values.lua")),
            raise: guarded(include_str!("scripts/raise.lua")),
            renew: guarded(RENEW),
            range_after: guarded(include_str!("scripts/range_after.lua")),
        }
    }
}

/// A script that writes nothing if its user lacks the right to one of its commands.
fn guarded(text: &str) -> Script {
    let mut tries = String::new();
    for command in COMMANDS {
        let name = command.split(' ').next().unwrap_or_default();
        if text.contains(&format!("call('{name}'")) {
            let words = command.split(' ').map(|word| match word {
                "K" => "KEYS[1]".to_owned(),
                word => format!("'{word}'"),
            });
            let _ = write!(tries, "{{{}}},", words.collect::<Vec<_>>().join(","));
        }
    }
    Script::new(&format!(
        "if redis.acl_check_cmd then for _, try in ipairs({{{tries}}}) do if not redis.acl_check_cmd(unpack(try)) then \
         return redis.error_reply('NOPERM this user may not run ' .. try[1] .. ', nothing was written') end end end\n{text}"
    ))
}
