//! The scripts: each is one step, applied in full or not at all.
//!
//! # Why each script begins with a check of rights
//! Redis does not undo a script that fails: a record would be written without its outbox entry, and receivers would
//! never be notified. In Redis 7 and Valkey a script can check the rights of its user. For an older server the
//! examination names the missing rights within a minute, and the service is not ready until then.

use std::fmt::Write;

use redis::Script;

use super::rights::COMMANDS;
use crate::presence::{FINAL_BEFORE, STORM, Stage};

/// The script that renews leases, for a test that compares it with the rule.
#[doc(hidden)]
pub const RENEW: &str = include_str!("scripts/renew.lua");

/// All scripts, hashed once. A script that the server does not know is loaded and run again.
pub struct Scripts {
    pub apply: Script,
    pub write_if_unchanged: Script,
    pub write_steps: Script,
    pub write_cells: Script,
    pub hand_out: Script,
    pub join: Script,
    pub seal: Script,
    pub keep_values: Script,
    pub raise: Script,
    pub renew: Script,
    pub entries_after: Script,
}

impl Scripts {
    pub fn new() -> Scripts {
        Scripts {
            apply: guarded(include_str!("scripts/apply.lua")),
            write_if_unchanged: guarded(include_str!("scripts/write_if_unchanged.lua")),
            write_steps: guarded(include_str!("scripts/write_steps.lua")),
            write_cells: guarded(concat!(
                include_str!("scripts/write_cells.lua"),
                "return write_cells(0, 1)"
            )),
            hand_out: guarded(include_str!("scripts/hand_out.lua")),
            join: guarded(concat!(include_str!("scripts/sealing.lua"), include_str!("scripts/join.lua"))),
            seal: guarded(concat!(include_str!("scripts/sealing.lua"), include_str!("scripts/seal.lua"))),
            keep_values: guarded(include_str!("scripts/keep_values.lua")),
            raise: guarded(include_str!("scripts/raise.lua")),
            renew: guarded(RENEW),
            entries_after: guarded(include_str!("scripts/entries_after.lua")),
        }
    }
}

/// The rules' values as scripts name them.
fn constants() -> Vec<(&'static str, String)> {
    let stage = |stage| {
        let name = match stage {
            Stage::Waits => "WAITS",
            Stage::Notified => "NOTIFIED",
            Stage::IsBack => "IS_BACK",
            Stage::Over => "OVER",
        };
        (name, format!("'{}'", stage.letter()))
    };
    let numbers = [("STORM", STORM.as_millis().to_string()), ("FINAL", FINAL_BEFORE.to_string())];
    Stage::ALL.into_iter().map(stage).chain(numbers).collect()
}

/// Makes a script that writes nothing if its user lacks the right to one of its commands. The values of rules that its
/// text names are declared before it.
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
    let mut values = String::new();
    for (name, value) in constants().iter().filter(|(name, _)| text.contains(name)) {
        let _ = writeln!(values, "local {name} = {value}");
    }
    Script::new(&format!(
        "if redis.acl_check_cmd then for _, try in ipairs({{{tries}}}) do if not redis.acl_check_cmd(unpack(try)) then \
         return redis.error_reply('NOPERM this user may not run ' .. try[1] .. ', nothing was written') end end end\n{values}{text}"
    ))
}
