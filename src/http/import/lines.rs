//! The lines of an inventory: NDJSON, or CSV with a line of column names. Hostile until parsed.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::rc::Rc;

use csv::{StringRecord, Terminator};
use serde_json::{Map, Value};

use crate::cause::json;
use crate::clock::{Timestamp, parse_moment};
use crate::csv_row::without_apostrophes;
use crate::http::inventory::FIELDS;
use crate::http::settings::{PARENT, SettingsRequest};
use crate::http::units::check_name;
use crate::presence::{Kind, Unit, UnitName, UnitSettings};

/// The longest line, in bytes.
const MAX_LINE: usize = 64 * 1024;
/// The longest row of CSV with the bytes that the library reads ahead, in bytes.
const MAX_ROW: usize = MAX_LINE + 16 * 1024;
/// The most columns of CSV, and the longest name of a column in bytes.
const MAX_COLUMNS: usize = 256;
const MAX_NAME: usize = 256;
/// The prefix of columns of labels: `label.<name>`.
const LABEL: &str = "label.";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ImportFormat {
    Ndjson,
    Csv,
}

/// The rules for lines.
#[derive(Clone)]
pub(super) struct Checks {
    /// The configured kinds, and how each names its units.
    pub kinds: HashMap<Kind, UnitName>,
    /// The kind of lines that name no kind; lines of other kinds are bad.
    pub kind: Option<Kind>,
    pub now: Timestamp,
}

/// A line that is not empty.
pub(super) struct ImportLine {
    /// The number of the line, from 1 on; the column names of a CSV count as a line.
    pub number: u64,
    /// A unit and its settings, or the fault of the line, in words.
    pub entry: Result<(Unit, UnitSettings), String>,
}

/// Calls `take` with every line of a file, until `take` returns `false`.
///
/// # Errors
/// The file cannot be read, or (as [`io::ErrorKind::InvalidData`]) it has no usable column names.
pub(super) fn read(
    file: &mut (impl Read + Seek),
    format: ImportFormat,
    checks: &Checks,
    take: impl FnMut(ImportLine) -> bool,
) -> io::Result<()> {
    file.rewind()?;
    let mut mark = Vec::new();
    file.by_ref().take(3).read_to_end(&mut mark)?;
    // Skips the byte order mark that spreadsheets write.
    let begin = if mark == [0xEF, 0xBB, 0xBF] { 3 } else { 0 };
    file.seek(SeekFrom::Start(begin))?;
    match format {
        ImportFormat::Ndjson => read_ndjson(BufReader::new(file), checks, take),
        ImportFormat::Csv => read_csv(file, checks, take),
    }
}

fn read_ndjson(
    mut file: impl BufRead,
    checks: &Checks,
    mut take: impl FnMut(ImportLine) -> bool,
) -> io::Result<()> {
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        if file.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        if text.len() > MAX_LINE && text.last() != Some(&b'\n') {
            file.skip_until(b'\n')?;
            if !take(ImportLine { number, entry: Err(format!("it has more than {MAX_LINE} bytes")) }) {
                break;
            }
            continue;
        }
        let line = text.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let fields = json::read::<Map<String, Value>>(line);
        if !take(ImportLine { number, entry: fields.and_then(|fields| from_json(fields, checks)) }) {
            break;
        }
    }
    Ok(())
}

fn from_json(mut fields: Map<String, Value>, checks: &Checks) -> Result<(Unit, UnitSettings), String> {
    let mut text = |name: &str| match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name} is a text")),
    };
    let (kind, id) = (text("kind")?, text("unit")?);
    // An export writes `last_seen`, and an import ignores it.
    fields.remove("last_seen");
    let unit = checks.unit(kind.as_deref(), id.as_deref())?;
    let settings = SettingsRequest::from_json(fields)?.check(&unit, checks.now)?;
    Ok((unit, settings))
}

/// Reads rows of CSV. A line ends with a line feed; a carriage return before it is removed here, because the library
/// counts lines wrong when it does that itself.
fn read_csv(file: impl Read, checks: &Checks, mut take: impl FnMut(ImportLine) -> bool) -> io::Result<()> {
    let left = Rc::new(Cell::new(MAX_ROW));
    let file = RowLimit { file, left: left.clone() };
    let mut reader =
        csv::ReaderBuilder::new().flexible(true).terminator(Terminator::Any(b'\n')).from_reader(file);
    let columns = columns(reader.headers().map_err(|error| too_long(error, 1))?)?;
    let mut row = StringRecord::new();
    loop {
        left.set(MAX_ROW);
        let read = reader.read_record(&mut row);
        // A row may span several lines; this is the number of the first.
        let number = row.position().map_or(0, csv::Position::line);
        let entry = match read {
            Ok(false) => return Ok(()),
            Ok(true) if row.len() == 1 && row[0].trim().is_empty() => continue,
            Ok(true) => from_row(&columns, &row, checks),
            Err(error) => match error.into_kind() {
                csv::ErrorKind::Io(error) => return Err(row_too_long(error, number)),
                _ => Err("it is no UTF-8".to_owned()),
            },
        };
        if !take(ImportLine { number, entry }) {
            return Ok(());
        }
    }
}

/// The names of the columns, each once.
fn columns(header: &StringRecord) -> io::Result<Vec<String>> {
    if header.len() > MAX_COLUMNS {
        return Err(unusable(format!(
            "there are {} columns, and at most {MAX_COLUMNS} are read",
            header.len()
        )));
    }
    let columns: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
    let mut seen = HashSet::new();
    for name in &columns {
        let is_known = FIELDS.contains(&name.as_str()) || name == PARENT || name.starts_with(LABEL);
        if name.len() > MAX_NAME || !is_known || !seen.insert(name) {
            let (expected, name) = (FIELDS.join(", "), &name[..name.floor_char_boundary(MAX_NAME)]);
            return Err(unusable(format!(
                "column {name:?} is not one of {expected}, parent, label.<name>, each once"
            )));
        }
    }
    if !seen.contains(&"unit".to_owned()) {
        return Err(unusable("there is no column `unit`; the first line has the names of the columns"));
    }
    Ok(columns)
}

/// Limits the bytes of a row: the library keeps a whole row in memory, and a row may be a single cell.
struct RowLimit<R> {
    file: R,
    /// How many more bytes the row may have. The library reads some kilobytes ahead.
    left: Rc<Cell<usize>>,
}

impl<R: Read> Read for RowLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.left.get());
        if length == 0 && !buffer.is_empty() {
            return Err(unusable(""));
        }
        let read = self.file.read(&mut buffer[..length])?;
        self.left.set(self.left.get() - read);
        Ok(read)
    }
}

fn too_long(error: csv::Error, line: u64) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => row_too_long(error, line),
        _ => unusable("the line of column names is no UTF-8"),
    }
}

fn row_too_long(error: io::Error, line: u64) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => unusable(format!(
            "the row from line {line} on has more than {MAX_LINE} bytes; is a quotation mark missing?"
        )),
        _ => error,
    }
}

fn unusable(problem: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_string())
}

fn from_row(columns: &[String], row: &StringRecord, checks: &Checks) -> Result<(Unit, UnitSettings), String> {
    if row.len() != columns.len() {
        return Err(format!("it has {} cells, and there are {} columns", row.len(), columns.len()));
    }
    let mut wanted = SettingsRequest::default();
    let (mut kind, mut id) = (None, None);
    for (name, cell) in columns.iter().zip(row) {
        let cell = &*without_apostrophes(cell.strip_suffix('\r').unwrap_or(cell));
        // An empty cell leaves everything as it is.
        if cell.is_empty() {
            continue;
        }
        match name.as_str() {
            "kind" => kind = Some(cell.to_owned()),
            "unit" => id = Some(cell.to_owned()),
            "timeout_seconds" => wanted.timeout_seconds = Some(number(name, cell)?),
            "grace_seconds" => wanted.grace_seconds = Some(number(name, cell)?),
            "labels" => {
                let labels: crate::presence::Labels =
                    json::read(cell.as_bytes()).map_err(|why| format!("labels: {why}"))?;
                wanted.labels.get_or_insert_default().extend(labels);
            }
            "paused_until" => {
                let until = parse_moment(cell).ok_or("paused_until is a moment as RFC 3339 has it")?;
                wanted.paused_until = Some(Some(until));
            }
            "note" => wanted.note = Some(Some(cell.to_owned())),
            PARENT => wanted.parent = Some(cell.to_owned()),
            _ => {
                if let Some(label) = name.strip_prefix(LABEL) {
                    wanted.labels.get_or_insert_default().insert(label.to_owned(), cell.to_owned());
                }
            }
        }
    }
    let unit = checks.unit(kind.as_deref(), id.as_deref())?;
    let settings = wanted.check(&unit, checks.now)?;
    Ok((unit, settings))
}

fn number(name: &str, cell: &str) -> Result<f64, String> {
    cell.trim().parse().map_err(|_| format!("{name} is a number"))
}

impl Checks {
    fn unit(&self, kind: Option<&str>, id: Option<&str>) -> Result<Unit, String> {
        let kind: Kind = match (kind, &self.kind) {
            (Some(kind), wanted) => {
                let kind = kind.parse().map_err(|error| format!("kind: {error}"))?;
                if wanted.as_ref().is_some_and(|wanted| *wanted != kind) {
                    return Err(format!("its kind is {kind}"));
                }
                kind
            }
            (None, Some(kind)) => kind.clone(),
            (None, None) => return Err("it has no kind".to_owned()),
        };
        let Some(name) = self.kinds.get(&kind) else {
            return Err(format!("there is no kind {kind} in the configuration"));
        };
        let id = id.ok_or("it has no unit")?.parse().map_err(|error| format!("unit: {error}"))?;
        let unit = Unit::new(kind, id);
        check_name(&unit, name)?;
        Ok(unit)
    }
}
