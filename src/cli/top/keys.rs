//! The keys of `rollcall top`.

use std::io::{Read, stdin};

use tokio::sync::mpsc;

/// The most keys in the buffer; further keys are lost.
const WAITING: usize = 16;

/// Ctrl-C, Ctrl-D and Ctrl-Z, which arrive as keys in this mode.
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;
const CTRL_Z: u8 = 26;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PressedKey {
    Quit,
    Suspend,
    /// Any other key, which asks the instance at once.
    Other,
}

pub(super) struct PressedKeys(mpsc::Receiver<PressedKey>);

impl PressedKeys {
    /// Reads keys in a thread that ends with the process, because a read of a terminal cannot be interrupted.
    pub fn read() -> std::io::Result<PressedKeys> {
        let (sender, keys) = mpsc::channel(WAITING);
        let read = move || {
            let mut byte = [0];
            // At the end of the input the terminal is gone.
            while let Ok(1) = stdin().read(&mut byte) {
                if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(key(byte[0])) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("keys".to_owned()).spawn(read)?;
        Ok(PressedKeys(keys))
    }

    /// The next key. Cancel-safe.
    pub async fn next(&mut self) -> PressedKey {
        self.0.recv().await.unwrap_or(PressedKey::Quit)
    }

    /// Waits for a key that quits, and drops other keys. Cancel-safe.
    pub async fn quit(&mut self) {
        while self.next().await != PressedKey::Quit {}
    }
}

fn key(byte: u8) -> PressedKey {
    match byte {
        b'q' | b'Q' | CTRL_C | CTRL_D => PressedKey::Quit,
        CTRL_Z => PressedKey::Suspend,
        _ => PressedKey::Other,
    }
}
