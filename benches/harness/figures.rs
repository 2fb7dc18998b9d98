//! The figures of a run, with their goals; as a table and as JSON.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use rollcall::clock::{Clock, monotonic};
use serde::{Deserialize, Serialize};

use super::machine::{Machine, load};
use super::other_load::OtherLoad;
use super::thousands;

/// The table stands between these lines of `benches/FIGURES.md`.
const BEGIN: &str = "<!-- figures: written by make bench -->";
const END: &str = "<!-- end of figures -->";

/// The figure that shows how reliable the others are.
pub const TAKEN: &str = "the machine's processor time that others took meanwhile";

/// The goal of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// An upper bound.
    AtMost(f64),
    /// A lower bound.
    AtLeast(f64),
    /// An exact value.
    Exactly(f64),
    /// No goal: the value is shown for comparison.
    None,
}

/// A measured value.
#[derive(Clone, Serialize, Deserialize)]
struct Figure {
    what: String,
    value: f64,
    unit: String,
    goal: Option<String>,
    met: Option<bool>,
}

/// The figures of one benchmark.
#[derive(Clone, Serialize, Deserialize)]
struct Section {
    benchmark: String,
    date: String,
    /// The load of the machine before the run.
    load: f64,
    /// The server that keeps the fleet; absent: the server of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redis: Option<String>,
    figures: Vec<Figure>,
}

/// All figures that are written down, each benchmark with its last measurement.
#[derive(Serialize, Deserialize)]
struct Results {
    machine: Machine,
    sections: Vec<Section>,
}

/// The figures of a run.
pub struct Report {
    results: Results,
    load: f64,
    began: Instant,
    others: OtherLoad,
}

impl Report {
    /// A report without figures.
    pub fn new(machine: Machine) -> anyhow::Result<Report> {
        let (began, others) = (monotonic(), OtherLoad::watch()?);
        Ok(Report { results: Results { machine, sections: Vec::new() }, load: load(), began, others })
    }

    /// Begins a benchmark; later figures belong to it.
    pub fn begin(&mut self, benchmark: &str) -> anyhow::Result<()> {
        let now = Clock::system().now().to_string();
        let date = now.split('T').next().unwrap_or_default().to_owned();
        let redis = Some(self.results.machine.redis.clone());
        let (benchmark, load) = (benchmark.to_owned(), self.load);
        self.results.sections.push(Section { benchmark, date, load, redis, figures: Vec::new() });
        self.others = OtherLoad::watch()?;
        eprintln!(
            "[{:4.0} s] {}",
            monotonic().duration_since(self.began).as_secs_f64(),
            self.section().benchmark
        );
        Ok(())
    }

    fn section(&mut self) -> &mut Section {
        self.results.sections.last_mut().expect("a benchmark has begun")
    }

    /// Ends the benchmark: adds the share of the machine that other load took meanwhile.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let percent = self.others.percent()?;
        self.add(TAKEN, percent, "%", Goal::None);
        Ok(())
    }

    /// Adds a figure and shows it.
    pub fn add(&mut self, what: impl Into<String>, value: f64, unit: &str, goal: Goal) {
        let (goal, met) = match goal {
            Goal::AtMost(most) => (Some(format!("≤ {}", number(most))), Some(value <= most)),
            Goal::AtLeast(least) => (Some(format!("≥ {}", number(least))), Some(value >= least)),
            Goal::Exactly(wanted) => (Some(format!("= {}", number(wanted))), Some(value == wanted)),
            Goal::None => (None, None),
        };
        let figure = Figure { what: what.into(), value, unit: unit.to_owned(), goal, met };
        eprintln!("  {}", figure.line());
        self.section().figures.push(figure);
    }

    /// The table, as Markdown.
    pub fn table(&self) -> String {
        self.results.table()
    }

    /// Writes the benchmarks that have ended to `benches/results.json` and the table in `benches/FIGURES.md`, in this
    /// order. Benchmarks that this run has not measured stay, unless they come from another machine.
    pub fn write(&self, root: &Path, order: &[&str]) -> anyhow::Result<()> {
        let file = root.join("benches/results.json");
        let stored: Option<Results> =
            std::fs::read(&file).ok().and_then(|json| serde_json::from_slice(&json).ok());
        let stored = stored.filter(|stored| stored.machine.is_like(&self.results.machine));
        let machine =
            stored.as_ref().map_or_else(|| self.results.machine.clone(), |stored| stored.machine.clone());
        let measured = |benchmark: &str| self.results.sections.iter().any(|one| one.benchmark == benchmark);
        let kept = stored.into_iter().flat_map(|stored| stored.sections);
        let kept = kept.filter(|section| !measured(&section.benchmark));
        let sections = kept.chain(self.results.sections.iter().cloned()).collect();
        let mut results = Results { machine, sections };
        results.sections.sort_by_key(|section| order.iter().position(|name| *name == section.benchmark));
        std::fs::write(file, serde_json::to_string_pretty(&results)? + "\n")?;
        let path = root.join("benches/FIGURES.md");
        let page = std::fs::read_to_string(&path)?;
        let (before, rest) =
            page.split_once(BEGIN).context("FIGURES.md has no line that begins the table")?;
        let (_, after) = rest.split_once(END).context("FIGURES.md has no line that ends the table")?;
        std::fs::write(path, format!("{before}{BEGIN}\n{}{END}{after}", results.table()))?;
        Ok(())
    }
}

impl Results {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine);
        text += "| what | measured | goal | met |\n|---|---:|---:|---|\n";
        for Section { benchmark, date, load, redis, figures } in &self.sections {
            let other = redis.as_ref().filter(|redis| **redis != self.machine.redis);
            let with = other.map(|redis| format!(", {redis}")).unwrap_or_default();
            let name = benchmark.replace('_', " ");
            text += &format!("| **{name}**, {date}, load before {load}{with} | | | |\n");
            for figure in figures {
                let goal = figure.goal.as_deref().unwrap_or("");
                let met = figure.met.map_or("", |met| if met { "yes" } else { "**no**" });
                let value = number(figure.value);
                text += &format!("| {} | {value} {} | {goal} | {met} |\n", figure.what, figure.unit);
            }
        }
        text
    }
}

impl Figure {
    fn line(&self) -> String {
        let goal = self.goal.as_ref().map(|goal| format!(" (goal {goal})")).unwrap_or_default();
        let met = self.met.map_or("", |met| if met { ", met" } else { ", NOT met" });
        format!("{}: {} {}{goal}{met}", self.what, number(self.value), self.unit)
    }
}

/// Formats a value with its significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => thousands(value.round() as u64),
        middle if middle >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
