//! The scripts: each is one step that happens in full or not at all.

use redis::Script;

/// All scripts, hashed once. A server that does not know one is taught it and asked again.
pub struct Scripts {
    pub apply: Script,
    pub advance: Script,
    pub notice_loss: Script,
    pub prove: Script,
    pub attend: Script,
    pub depart: Script,
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
            apply: Script::new(include_str!("scripts/apply.lua")),
            advance: Script::new(include_str!("scripts/advance.lua")),
            notice_loss: Script::new(include_str!("scripts/notice_loss.lua")),
            prove: Script::new(include_str!("scripts/prove.lua")),
            attend: Script::new(include_str!("scripts/attend.lua")),
            depart: Script::new(include_str!("scripts/depart.lua")),
            group_of: Script::new(include_str!("scripts/group_of.lua")),
            hand_out: Script::new(include_str!("scripts/hand_out.lua")),
            join: Script::new(concat!(include_str!("scripts/sealing.lua"), include_str!("scripts/join.lua"))),
            seal: Script::new(concat!(include_str!("scripts/sealing.lua"), include_str!("scripts/seal.lua"))),
            lease: Script::new(include_str!("scripts/lease.lua")),
            spread: Script::new(include_str!("scripts/spread.lua")),
            put_off: Script::new(include_str!("scripts/put_off.lua")),
            finish: Script::new(include_str!("scripts/finish.lua")),
            tidy: Script::new(include_str!("scripts/tidy.lua")),
            forget_records: Script::new(include_str!("scripts/forget_records.lua")),
            keep_values: Script::new(include_str!("scripts/keep_values.lua")),
            forget_values: Script::new(include_str!("scripts/forget_values.lua")),
            renew: Script::new(include_str!("scripts/renew.lua")),
        }
    }
}
