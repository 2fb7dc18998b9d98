//! The scripts: each is one step that happens in full or not at all.
//!
//! # Why each begins with a look at what its user may do
//! A script that fails is not undone: a record would stand whose news the user may not write, and it would never be
//! told. Redis 7 and Valkey say beforehand what a user may do. An older server does not; there the examination names
//! what is missing within a minute, and the service is not ready until then.

use std::fmt::Write;

use redis::Script;

use super::rights::COMMANDS;

/// The script that renews leases, for a test that compares it with the rule.
#[doc(hidden)]
pub const RENEW: &str = include_str!("scripts/renew.lua");

/// All scripts, hashed once. A server that does not know one is taught it and asked again.
pub struct Scripts {
    pub apply: Script,
    pub write_if_unchanged: Script,
    pub group_of: Script,
    pub hand_out: Script,
    pub join: Script,
    pub seal: Script,
    pub lease: Script,
    pub spread: Script,
    pub put_off: Script,
    pub finish: Script,
    pub tidy: Script,
    pub forget_records: Script,
    pub keep_values: Script,
    pub forget_values: Script,
    pub renew: Script,
}

impl Scripts {
    pub fn new() -> Scripts {
        Scripts {
            apply: guarded(include_str!("scripts/apply.lua")),
            write_if_unchanged: guarded(include_str!("scripts/write_if_unchanged.lua")),
            group_of: guarded(include_str!("scripts/group_of.lua")),
            hand_out: guarded(include_str!("scripts/hand_out.lua")),
            join: guarded(concat!(include_str!("scripts/sealing.lua"), include_str!("scripts/join.lua"))),
            seal: guarded(concat!(include_str!("scripts/sealing.lua"), include_str!("scripts/seal.lua"))),
            lease: guarded(include_str!("scripts/lease.lua")),
            spread: guarded(include_str!("scripts/spread.lua")),
            put_off: guarded(include_str!("scripts/put_off.lua")),
            finish: guarded(include_str!("scripts/finish.lua")),
            tidy: guarded(include_str!("scripts/tidy.lua")),
            forget_records: guarded(include_str!("scripts/forget_records.lua")),
            keep_values: guarded(include_str!("scripts/keep_values.lua")),
            forget_values: guarded(include_str!("scripts/forget_values.lua")),
            renew: guarded(RENEW),
        }
    }
}

/// A script that writes nothing if its user lacks the right to one of the commands that it calls.
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
