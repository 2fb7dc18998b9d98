//! The resources of the process, under the standard names of Prometheus client libraries.
//!
//! Read from `/proc` at each scrape; without `/proc` the series are absent. The collector of the `prometheus` crate
//! gives processor time in whole seconds only.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, Metric, MetricFamily, MetricType};
use rustix::param;

/// Name, help and whether it is a counter.
const FAMILIES: [(&str, &str, bool); 7] = [
    ("process_cpu_seconds_total", "Processor time spent by the process, by itself and in the kernel.", true),
    ("process_resident_memory_bytes", "Memory that the process holds.", false),
    ("process_virtual_memory_bytes", "Addresses that the process has reserved.", false),
    ("process_start_time_seconds", "When the process started.", false),
    ("process_open_fds", "Open files and connections of the process.", false),
    ("process_max_fds", "The most files and connections that the process may have open.", false),
    ("process_threads", "Threads of the process.", false),
];

#[derive(Clone)]
pub(super) struct Process {
    descs: Vec<Desc>,
}

impl Default for Process {
    fn default() -> Process {
        let desc = |(name, help, _): (&str, &str, bool)| {
            Desc::new(name.to_owned(), help.to_owned(), Vec::new(), Default::default())
                .expect("a constant name")
        };
        Process { descs: FAMILIES.map(desc).into() }
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let values = read().unwrap_or_default();
        let found = FAMILIES.into_iter().zip(values);
        found
            .filter_map(|((name, help, is_counter), value)| Some(family(name, help, is_counter, value?)))
            .collect()
    }
}

/// The values in the order of [`FAMILIES`]; `None` for those that cannot be read.
fn read() -> Option<[Option<f64>; FAMILIES.len()]> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Numbered as in `man 5 proc_pid_stat`; the first two fields are before or in the parentheses.
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let ticks = param::clock_ticks_per_second() as f64;
    let open = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    Some([
        field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks),
        field(24).map(|pages| pages * param::page_size() as f64),
        field(23),
        field(22).zip(boot_time()).map(|(start, boot)| boot + start / ticks),
        open,
        most_files(),
        field(20),
    ])
}

/// When the machine started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The soft limit; `None` if there is none.
fn most_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn family(name: &str, help: &str, is_counter: bool, value: f64) -> MetricFamily {
    let mut metric = Metric::default();
    if is_counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(if is_counter { MetricType::COUNTER } else { MetricType::GAUGE });
    family.set_metric(vec![metric]);
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_threads_files_and_a_start_in_the_past() {
        let found = Process::default().collect();
        let value = |name: &str| {
            let family = found.iter().find(|family| family.name() == name).expect(name);
            let metric = &family.get_metric()[0];
            metric.get_gauge().get_value().max(metric.get_counter().get_value())
        };
        assert_eq!(found.len(), FAMILIES.len(), "/proc is read");
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_threads") >= 1.0);
        assert!((3.0..value("process_max_fds")).contains(&value("process_open_fds")));
        let now = crate::clock::Clock::system().now().as_millis() as f64 / 1e3;
        assert!((now - 86_400.0..now + 1.0).contains(&value("process_start_time_seconds")));
    }

    #[test]
    fn processor_time_has_fractions_of_seconds() {
        let spent = || read().unwrap()[0].unwrap();
        let before = spent();
        // Work until the measured time has grown.
        let mut work = 0_u64;
        while spent() == before {
            work = (0..100_000).fold(work, |sum, next| sum.wrapping_mul(31).wrapping_add(next));
        }
        assert!(spent() - before < 1.0, "{work}");
    }
}
