//! The terminal while `rollcall top` has it: another screen without a cursor, and keys that arrive one by one and
//! unechoed.
//!
//! On every way out the terminal is restored: when [`Screen`] is dropped, at a panic (which ends the process before
//! any value is dropped), and at a pause by Ctrl-Z.

use std::io::{Write, stdin, stdout};

use anyhow::Context;
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// The number of SIGCONT.
pub(super) const CONTINUED: i32 = Signal::CONT.as_raw();

/// The other screen, without a cursor; long lines are cut, not wrapped.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The size of a terminal that does not report its size.
const UNKNOWN_SIZE: (u16, u16) = (80, 24);

pub(super) struct Screen {
    /// The modes of the terminal before.
    before: Termios,
}

impl Screen {
    pub fn open() -> anyhow::Result<Screen> {
        let before = tcgetattr(stdin()).context("the modes of the terminal cannot be read")?;
        let (screen, modes) = (Screen { before: before.clone() }, before);
        let said_before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave(&modes);
            said_before(panic);
        }));
        screen.enter()?;
        Ok(screen)
    }

    pub fn enter(&self) -> anyhow::Result<()> {
        let mut modes = self.before.clone();
        modes
            .local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin(), OptionalActions::Now, &modes)
            .context("the modes of the terminal cannot be set")?;
        write(ENTER)
    }

    /// Columns and lines.
    pub fn size(&self) -> (u16, u16) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => UNKNOWN_SIZE,
        }
    }

    /// Shows these lines in place of the last ones.
    pub fn show(&self, lines: &[String]) -> anyhow::Result<()> {
        let mut frame = String::from("\x1b[H");
        for (number, line) in lines.iter().enumerate() {
            frame.push_str(if number > 0 { "\r\n" } else { "" });
            frame.push_str(line);
            frame.push_str("\x1b[K");
        }
        frame.push_str("\x1b[J");
        write(&frame)
    }

    /// Stops the process as Ctrl-Z does. SIGCONT brings the screen back.
    pub fn suspend(&self) -> anyhow::Result<()> {
        leave(&self.before);
        kill_current_process_group(Signal::TSTP)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave(&self.before);
    }
}

/// A failure means that the terminal is gone.
fn leave(modes: &Termios) {
    let _ = write(LEAVE);
    let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("the terminal cannot be written")
}
