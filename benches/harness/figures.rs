//! The figures of a run, with their goals; as a table and as JSON.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use rollcall::clock::Clock;
use serde::Serialize;

use super::machine::Machine;
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
    /// Shown for comparison.
    None,
}

/// A measured value.
#[derive(Serialize)]
struct Figure {
    benchmark: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    goal: Option<String>,
    met: Option<bool>,
}

/// All figures of a run.
#[derive(Serialize)]
pub struct Report {
    machine: Machine,
    units: u32,
    figures: Vec<Figure>,
    #[serde(skip)]
    benchmark: &'static str,
    #[serde(skip)]
    began: Instant,
    #[serde(skip)]
    others: OtherLoad,
}

impl Report {
    /// A report without figures; `units` is the size of the large fleet.
    pub fn new(machine: Machine, units: u32) -> anyhow::Result<Report> {
        let (began, others) = (Instant::now(), OtherLoad::watch()?);
        Ok(Report { machine, units, figures: Vec::new(), benchmark: "", began, others })
    }

    /// Begins a benchmark; later figures belong to it.
    pub fn begin(&mut self, benchmark: &'static str) -> anyhow::Result<()> {
        self.benchmark = benchmark;
        self.others = OtherLoad::watch()?;
        eprintln!("[{:4.0} s] {benchmark}", self.began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Ends the benchmark: adds the share of the machine that other load took meanwhile.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let percent = self.others.percent()?;
        self.add(TAKEN, percent, "%", Goal::None);
        Ok(())
    }

    /// Adds a figure and shows it.
    pub fn add(&mut self, what: impl Into<String>, value: f64, unit: &'static str, goal: Goal) {
        let (goal, met) = match goal {
            Goal::AtMost(most) => (Some(format!("≤ {}", number(most))), Some(value <= most)),
            Goal::AtLeast(least) => (Some(format!("≥ {}", number(least))), Some(value >= least)),
            Goal::Exactly(wanted) => (Some(format!("= {}", number(wanted))), Some(value == wanted)),
            Goal::None => (None, None),
        };
        let figure = Figure { benchmark: self.benchmark, what: what.into(), value, unit, goal, met };
        eprintln!("  {}", figure.line());
        self.figures.push(figure);
    }

    /// The table, as Markdown.
    pub fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine);
        text += "| what | measured | goal | met |\n|---|---:|---:|---|\n";
        let mut benchmark = "";
        for figure in &self.figures {
            if figure.benchmark != benchmark {
                benchmark = figure.benchmark;
                text += &format!("| **{}** | | | |\n", benchmark.replace('_', " "));
            }
            let goal = figure.goal.as_deref().unwrap_or("");
            let met = figure.met.map_or("", |met| if met { "yes" } else { "**no**" });
            text +=
                &format!("| {} | {} {} | {goal} | {met} |\n", figure.what, number(figure.value), figure.unit);
        }
        text
    }

    /// Writes `benches/results.json` and the table in `benches/FIGURES.md`.
    pub fn write(&self, root: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(root.join("benches/results.json"), json)?;
        let path = root.join("benches/FIGURES.md");
        let page = std::fs::read_to_string(&path)?;
        let (before, rest) =
            page.split_once(BEGIN).context("FIGURES.md has no line that begins the table")?;
        let (_, after) = rest.split_once(END).context("FIGURES.md has no line that ends the table")?;
        let now = Clock::system().now().to_string();
        let date = now.split('T').next().unwrap_or_default();
        std::fs::write(path, format!("{before}{BEGIN}\nRun of {date}. {}{END}{after}", self.table()))?;
        Ok(())
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
