//! The text itself: all samples of the first family, then all of the second.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::clock::Timestamp;
use crate::engine::Mirror;
use crate::engine::mirror::{Chunk, Cursor, Seen};
use crate::http::UnitMetrics;
use crate::presence::{Hearing, State};

/// About how large a piece is before it is compressed.
const PIECE: usize = 256 * 1024;

/// The families in the order in which they are written.
#[derive(Clone, Copy)]
enum Family {
    Up,
    LastSeen,
}

/// The text of all units, to be written piece by piece.
pub(super) struct Text {
    mirror: Arc<Mirror>,
    hearing: Arc<Hearing>,
    now: Timestamp,
    mode: UnitMetrics,
    /// The family that is being written; `None` when all is written.
    family: Option<Family>,
    cursor: Cursor,
    chunk: Chunk,
    plain: Vec<u8>,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

impl Text {
    /// The text as of `now`.
    pub fn new(
        mirror: Arc<Mirror>,
        hearing: Arc<Hearing>,
        now: Timestamp,
        mode: UnitMetrics,
        gzip: bool,
    ) -> Text {
        let mut text = Text {
            mirror,
            hearing,
            now,
            mode,
            family: None,
            cursor: Cursor::default(),
            chunk: Chunk::default(),
            plain: Vec::with_capacity(PIECE + PIECE / 2),
            // The fastest level already leaves less than a tenth of it.
            gzip: gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
        };
        text.begin(Some(Family::Up));
        text
    }

    /// The next piece; `None` after the last.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        loop {
            while self.plain.len() < PIECE && self.family.is_some() {
                self.write_chunk();
            }
            let piece = match (&mut self.gzip, self.family) {
                (Some(gzip), Some(_)) => {
                    // Writing into memory cannot fail.
                    let _ = gzip.write_all(&self.plain);
                    self.plain.clear();
                    std::mem::take(gzip.get_mut())
                }
                (Some(_), None) => self.finish_gzip(),
                (None, _) => std::mem::replace(&mut self.plain, Vec::with_capacity(PIECE + PIECE / 2)),
            };
            if !piece.is_empty() {
                return Some(piece.into());
            }
            // Nothing came of it: the compressor still holds it, or it was the last.
            self.family?;
        }
    }

    fn finish_gzip(&mut self) -> Vec<u8> {
        let Some(mut gzip) = self.gzip.take() else { return Vec::new() };
        let _ = gzip.write_all(&self.plain);
        self.plain = Vec::new();
        gzip.finish().unwrap_or_default()
    }

    fn begin(&mut self, family: Option<Family>) {
        let head = match family {
            Some(Family::Up) => {
                "# HELP rollcall_unit_up 1 if the unit is present, 0 if it is offline or was never heard.\n\
                 # TYPE rollcall_unit_up gauge\n"
            }
            Some(Family::LastSeen) => {
                "# HELP rollcall_unit_last_seen_timestamp_seconds When the unit was last heard.\n\
                 # TYPE rollcall_unit_last_seen_timestamp_seconds gauge\n"
            }
            None => "",
        };
        self.plain.extend_from_slice(head.as_bytes());
        self.family = family;
        self.cursor = Cursor::default();
    }

    fn write_chunk(&mut self) {
        let Some(family) = self.family else { return };
        let any = self.mode != UnitMetrics::Off
            && self.mirror.read_next(&mut self.cursor, &mut self.chunk, &self.hearing, self.now);
        if !any {
            return self.begin(match family {
                Family::Up => Some(Family::LastSeen),
                Family::LastSeen => None,
            });
        }
        for unit in self.mirror.units(&self.chunk) {
            if self.mode == UnitMetrics::All || unit.state == State::Offline {
                write_sample(&mut self.plain, family, &unit);
            }
        }
    }
}

fn write_sample(out: &mut Vec<u8>, family: Family, unit: &Seen) {
    match family {
        Family::Up => {
            let up = !matches!(unit.state, State::Offline | State::NeverSeen);
            write_series(out, "rollcall_unit_up", unit);
            out.extend_from_slice(if up { b"1\n" } else { b"0\n" });
        }
        Family::LastSeen => {
            // The time of a registration is no sign of life.
            let Some(last_seen) = unit.last_seen else { return };
            write_series(out, "rollcall_unit_last_seen_timestamp_seconds", unit);
            let ms = last_seen.as_millis();
            let _ = writeln!(out, "{}.{:03}", ms / 1000, ms % 1000);
        }
    }
}

fn write_series(out: &mut Vec<u8>, name: &str, unit: &Seen) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"{kind=\"");
    out.extend_from_slice(unit.kind.as_bytes());
    out.extend_from_slice(b"\",unit=\"");
    for &byte in unit.id.as_bytes() {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            _ => out.push(byte),
        }
    }
    out.extend_from_slice(b"\"} ");
}
