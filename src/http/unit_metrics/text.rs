//! The text, family after family, in frames.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::clock::Timestamp;
use crate::fleet::Mirror;
use crate::fleet::{mirror::Chunk, mirror::Cursor, mirror::NameMatch, mirror::UnitFilter, mirror::UnitView};
use crate::http::exposition::{ExpositionFormat, Family};
use crate::presence::{Hearing, State};
use crate::store::{Metric, MetricType};

/// The approximate size of a frame before compression.
const FRAME_SIZE: usize = 256 * 1024;

pub(in crate::http) const UP: Family =
    Family::gauge("rollcall_unit_up", "1 if the unit is present, 0 if it is offline or was never heard.");
pub(in crate::http) const LAST_SEEN: Family =
    Family::gauge("rollcall_unit_last_seen_timestamp_seconds", "When the unit was last heard.");

const INFO: Family = Family {
    metric_type: MetricType::Info,
    ..Family::gauge(
        "rollcall_unit_info",
        "Always 1: the unit's values of the labels in http.count_by_labels.",
    )
};

const TRUNCATED: Family = Family::gauge(
    "rollcall_unit_metrics_truncated",
    "Units that are left out here because there are more than http.unit_metrics_limit.",
);
const VALUES_READ: Family = Family::gauge(
    "rollcall_unit_values_read",
    "1 if the values of units were read from the engine, 0 if it did not answer and they are missing here.",
);

#[derive(Clone)]
pub(super) struct TextSource {
    pub mirror: Arc<Mirror>,
    pub hearing: Arc<Hearing>,
    pub now: Timestamp,
    /// `None`: no units.
    pub filter: Option<UnitFilter>,
    pub limit: u64,
}

/// A text that is being written.
pub(super) struct UnitMetricsText {
    source: TextSource,
    format: ExpositionFormat,
    /// The family of states that is being written, of [`STATES`].
    family: usize,
    labels: Vec<String>,
    cursor: Cursor,
    chunk: Chunk,
    /// The number of units of the current family so far, including units that were left out.
    units: u64,
    left_out: u64,
    plain: Vec<u8>,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

/// Writes the sample of a unit; the names are those of [`Mirror::labels`].
type WriteSample = fn(&mut Vec<u8>, &UnitView, &[String]);

/// The families from the mirror; the last one exists only if units are counted by labels.
const STATES: [(Family, WriteSample); 3] = [(UP, write_up), (LAST_SEEN, write_last_seen), (INFO, write_info)];

impl UnitMetricsText {
    /// An empty text.
    pub fn new(source: TextSource, format: ExpositionFormat, gzip: bool) -> UnitMetricsText {
        let mut text = UnitMetricsText {
            labels: source.mirror.labels(),
            source,
            format,
            family: 0,
            cursor: Cursor::default(),
            chunk: Chunk::default(),
            units: 0,
            left_out: 0,
            plain: Vec::with_capacity(FRAME_SIZE + FRAME_SIZE / 2),
            // The fastest level already compresses the text to less than a tenth.
            gzip: gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
        };
        text.begin_state();
        text
    }

    /// Writes more from the mirror, at most a frame; `false` when all its families are written.
    pub fn write_states(&mut self) -> bool {
        while self.plain.len() < FRAME_SIZE && self.family < self.families() {
            self.write_chunk();
        }
        self.family < self.families()
    }

    fn families(&self) -> usize {
        if self.labels.is_empty() { STATES.len() - 1 } else { STATES.len() }
    }

    /// Begins a family of values.
    pub fn begin_values(&mut self, metric: &Metric) {
        Family::of(metric).begin(&mut self.plain, self.format);
        self.units = 0;
    }

    /// Writes values of a partition by the names of their units. Returns the names of units that the mirror lacks.
    pub fn write_values(
        &mut self,
        metric: &Metric,
        partition: u16,
        values: Vec<(String, String)>,
    ) -> Vec<String> {
        let Some(filter) = &self.source.filter else { return Vec::new() };
        let names = values.iter().map(|(name, _)| name.as_str());
        let found = self.source.mirror.match_names(partition, filter, names);
        let mut unknown = Vec::new();
        for ((name, value), found) in values.into_iter().zip(found) {
            match found {
                NameMatch::Selected if self.units < self.source.limit => {
                    self.units += u64::from(write_value(&mut self.plain, metric, &name, &value));
                }
                NameMatch::Selected | NameMatch::NotSelected => {}
                NameMatch::Unknown => unknown.push(name),
            }
        }
        unknown
    }

    /// Writes the last lines. `values_read`: all values were read; `None` if no kind has metrics.
    pub fn end(&mut self, values_read: Option<bool>) {
        if let Some(read) = values_read {
            VALUES_READ.begin(&mut self.plain, self.format);
            let _ = writeln!(self.plain, "{} {}", VALUES_READ.name, u8::from(read));
        }
        TRUNCATED.begin(&mut self.plain, self.format);
        let _ = writeln!(self.plain, "{} {}", TRUNCATED.name, self.left_out);
        self.plain.extend_from_slice(self.format.end());
    }

    /// Returns whether a frame is full.
    pub fn has_frame(&self) -> bool {
        self.plain.len() >= FRAME_SIZE
    }

    /// The text since the last frame; empty while the compressor holds it.
    pub fn take_frame(&mut self) -> Bytes {
        let frame = match &mut self.gzip {
            Some(gzip) => {
                // Writing into memory cannot fail.
                let _ = gzip.write_all(&self.plain);
                self.plain.clear();
                std::mem::take(gzip.get_mut())
            }
            None => std::mem::replace(&mut self.plain, Vec::with_capacity(FRAME_SIZE + FRAME_SIZE / 2)),
        };
        frame.into()
    }

    /// The last frame.
    pub fn finish(mut self) -> Bytes {
        let frame = self.take_frame();
        match self.gzip.take() {
            None => frame,
            Some(gzip) => [frame, gzip.finish().unwrap_or_default().into()].concat().into(),
        }
    }

    fn begin_state(&mut self) {
        if let Some((family, _)) = STATES[..self.families()].get(self.family) {
            family.begin(&mut self.plain, self.format);
            if family.metric_type == MetricType::Info {
                self.chunk = Chunk::with_values();
            }
        }
        self.units = 0;
        self.cursor = Cursor::new(self.source.filter.clone().unwrap_or_default());
    }

    fn write_chunk(&mut self) {
        let TextSource { mirror, hearing, now, filter, limit } = &self.source;
        let any = filter.is_some() && mirror.read_next(&mut self.cursor, &mut self.chunk, hearing, *now);
        if !any {
            self.left_out = self.units.saturating_sub(*limit);
            self.family += 1;
            return self.begin_state();
        }
        let (_, write) = STATES[self.family];
        for unit in mirror.units(&self.chunk) {
            self.units += 1;
            if self.units <= *limit {
                write(&mut self.plain, &unit, &self.labels);
            }
        }
    }
}

/// Returns whether a unit is up in the sense of Prometheus.
pub(in crate::http) fn is_up(state: State) -> bool {
    !matches!(state, State::Offline | State::NeverSeen)
}

fn write_up(out: &mut Vec<u8>, unit: &UnitView, _: &[String]) {
    UP.sample(out, unit.kind, unit.id, None);
    out.extend_from_slice(if is_up(unit.state) { b"1\n" } else { b"0\n" });
}

fn write_last_seen(out: &mut Vec<u8>, unit: &UnitView, _: &[String]) {
    // The time of a registration is not a time of a heartbeat.
    let Some(last_seen) = unit.last_seen else { return };
    LAST_SEEN.sample(out, unit.kind, unit.id, None);
    write_moment(out, last_seen);
}

fn write_info(out: &mut Vec<u8>, unit: &UnitView, labels: &[String]) {
    let names = labels.iter().map(String::as_str);
    let mut own = names.zip(unit.values.iter()).filter(|(_, value)| !value.is_empty()).peekable();
    if own.peek().is_some() {
        INFO.sample(out, unit.kind, unit.id, own);
        out.extend_from_slice(b"1\n");
    }
}

/// Writes a time in seconds, and ends the line.
pub(in crate::http) fn write_moment(out: &mut Vec<u8>, moment: Timestamp) {
    let ms = moment.as_millis();
    let _ = writeln!(out, "{}.{:03}", ms / 1000, ms % 1000);
}

/// Writes the value of a unit, named `<kind>:<unit>`, and returns `true`. A value that the current type of the metric
/// does not accept is left out.
pub(in crate::http) fn write_value(out: &mut Vec<u8>, metric: &Metric, name: &str, value: &str) -> bool {
    let Some((kind, id)) = name.split_once(':') else { return false };
    let family = Family::of(metric);
    if metric.metric_type == MetricType::Info {
        family.sample(out, kind, id, Some((metric.label.as_str(), value)));
        out.extend_from_slice(b"1\n");
        return true;
    }
    if !value.parse::<f64>().is_ok_and(f64::is_finite) {
        return false;
    }
    family.sample(out, kind, id, None);
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
    true
}
