//! A call of a script with its keys and arguments.

use redis::{Arg, Cmd, Script, ToRedisArgs};

/// A call of a script. Each word is stored once, because a storm has a hundred thousand of them in one call; a
/// `ScriptInvocation` of the library allocates memory for each word, and copies all of them.
pub struct ScriptCall<'a> {
    script: &'a Script,
    keys: Cmd,
    arguments: Cmd,
}

impl<'a> ScriptCall<'a> {
    pub fn of(script: &'a Script) -> ScriptCall<'a> {
        ScriptCall { script, keys: Cmd::new(), arguments: Cmd::new() }
    }

    pub fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        self.keys.arg(key);
        self
    }

    pub fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.arguments.arg(argument);
        self
    }

    /// The command that runs the script by its hash, and the script, in case the server does not know it yet.
    pub(super) fn into_command(self) -> (Cmd, &'a Script) {
        let (keys, hash) = (self.keys.args_iter().len(), self.script.get_hash());
        let words = || [&self.keys, &self.arguments].into_iter().flat_map(Cmd::args_iter).filter_map(simple);
        let bytes: usize = words().map(<[u8]>::len).sum();
        let mut command = Cmd::with_capacity(3 + words().count(), bytes + hash.len() + 32);
        command.arg("EVALSHA").arg(hash).arg(keys);
        words().for_each(|word| {
            command.arg(word);
        });
        (command, self.script)
    }
}

/// `None` for arguments that only scans of keys have.
fn simple(argument: Arg<&[u8]>) -> Option<&[u8]> {
    if let Arg::Simple(word) = argument { Some(word) } else { None }
}
