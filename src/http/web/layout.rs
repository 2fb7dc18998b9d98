//! The parts of every page: the head, the navigation, and a banner for problems of Rollcall itself.

use axum::http::StatusCode;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{SCRIPT, STYLE, Web};
use crate::http::Role;
use crate::http::changes::Caller;
use crate::http::summary::{FleetSummary, InstanceProblem, SummaryContent};
use crate::telemetry::{NOT_HEARING, Severity};

/// The pages of the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Fleet,
    Incidents,
    Records,
    Deliveries,
    Silences,
    Timers,
    Reports,
    Strangers,
    Instances,
    Configuration,
    About,
}

const TABS: [(Tab, &str, &str); 9] = [
    (Tab::Fleet, "/", "Fleet"),
    (Tab::Incidents, "/incidents", "Incidents"),
    (Tab::Records, "/records", "Records"),
    (Tab::Deliveries, "/deliveries", "Deliveries"),
    (Tab::Silences, "/silences", "Silences"),
    (Tab::Timers, "/timers", "Timers"),
    (Tab::Reports, "/reports", "Reports"),
    (Tab::Strangers, "/strangers", "Strangers"),
    (Tab::Instances, "/instances", "Instances"),
];

/// The longest quote in a banner, in characters: the state of the fleet stands below it.
const QUOTED: usize = 80;

/// The pages of the footer.
const FURTHER: [(Tab, &str, &str); 2] =
    [(Tab::Configuration, "/configuration", "configuration"), (Tab::About, "/about", "about")];

const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
    %3Ccircle cx='8' cy='8' r='7' fill='%231f6f5c'/%3E%3Cpath d='M4 8.5l3 3 5-6' stroke='white' stroke-width='2' \
    fill='none'/%3E%3C/svg%3E";

const HELP: [(&str, &str); 13] = [
    ("/", "search"),
    ("g f", "fleet"),
    ("g n", "incidents"),
    ("g r", "records"),
    ("g d", "deliveries"),
    ("g s", "silences"),
    ("g m", "timers"),
    ("g p", "reports"),
    ("g t", "strangers"),
    ("g i", "instances"),
    ("g c", "configuration"),
    ("g a", "about"),
    ("?", "this help; Escape closes it"),
];

impl Web {
    /// A whole page around `main`; `live` is the part that is replaced when the fleet changes. The script keeps what has
    /// an `id` or a `data-key`, wherever it moves among its siblings; other parts it pairs by their order.
    pub(super) fn page(
        &self,
        title: &str,
        tab: Option<Tab>,
        summary: &FleetSummary,
        caller: &Caller,
        live: Markup,
        rest: Markup,
    ) -> Markup {
        let offline = summary.content.states.offline;
        let count = if offline > 0 { format!("({offline}) ") } else { String::new() };
        // A report is expensive for the database, and hardly changes while it is read.
        let stream = (tab != Some(Tab::Reports)).then(|| format!("{}/api/v1/stream", self.base));
        let main = html! {
            div #live data-stream=[stream] data-now=(self.clock.now()) { div #warnings { (banner(&self.base, &summary.content)) } (live) }
            (rest)
        };
        html! {
            (DOCTYPE)
            html lang="en" {
                (head(&format!("{count}{title} · Rollcall"), &self.base))
                body {
                    a.skip href="#main" { "Skip to the content" }
                    (self.header(tab, caller))
                    main #main { (main) }
                    (self.footer(tab, summary))
                    (help())
                }
            }
        }
    }

    /// A screen has the pages in a row, a telephone in a menu; the other of the two is not displayed.
    fn header(&self, tab: Option<Tab>, caller: &Caller) -> Markup {
        let pages = html! {
            nav aria-label="Pages" {
                @for (one, path, name) in TABS {
                    a href={ (self.base) (path) } aria-current=[(tab == Some(one)).then_some("page")] { (name) }
                }
            }
        };
        let here = TABS.iter().find(|(one, ..)| tab == Some(*one)).map_or("Menu", |(.., name)| *name);
        html! {
            header {
                a.brand href={ (self.base) "/" } { "Rollcall" }
                (pages)
                details.menu { summary { span.hidden { "Pages: " } (here) } (pages) }
                form.search action={ (self.base) "/" } role="search" {
                    label.hidden for="search" { "Search units by a part of their id" }
                    input #search type="search" name="contains" maxlength="128" placeholder="Search units  /";
                }
                @if self.has_tokens.0 {
                    form.logout method="post" action={ (self.base) "/logout" } {
                        span.quiet title=(caller.token_name()) { (caller.token_name()) }
                        button type="submit" { "Log out" }
                    }
                }
            }
        }
    }

    fn footer(&self, tab: Option<Tab>, summary: &FleetSummary) -> Markup {
        html! {
            footer {
                "Rollcall " (env!("CARGO_PKG_VERSION")) " · as of "
                time #as-of datetime=(summary.at) { (summary.at) }
                @for (one, path, name) in FURTHER {
                    " · " a href={ (self.base) (path) } aria-current=[(tab == Some(one)).then_some("page")] { (name) }
                }
                " · " a href={ (self.base) "/metrics" } { "metrics" }
                " · " a href={ (self.base) "/readyz" } { "readiness" }
                " · press " kbd { "?" } " for keys"
            }
        }
    }
}

fn help() -> Markup {
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { "Keys" }
            dl { @for (key, what) in HELP { dt { kbd { (key) } } dd { (what) } } }
            form method="dialog" { button { "Close" } }
        }
    }
}

/// A page for a request that failed.
pub(super) fn problem(status: StatusCode, detail: &str, base: &str) -> Markup {
    let title = status.canonical_reason().unwrap_or("Failed");
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(&format!("{title} · Rollcall"), base))
            body { main #main.narrow { h1 { (title) } p { (detail) } p { a href={ (base) "/" } { "To the fleet" } } } }
        }
    }
}

pub(super) fn head(title: &str, base: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="description" content="Which devices of a fleet are silent, since when, and who was notified.";
            title { (title) }
            link rel="stylesheet" href={ (base) "/assets/style.css?v=" (version_of(STYLE)) };
            link rel="icon" href=(PreEscaped(ICON));
            script src={ (base) "/assets/script.js?v=" (version_of(SCRIPT)) } defer {}
        }
    }
}

/// A part of the address of an asset: browsers keep assets, and may not show pages of one version with those of another.
fn version_of(asset: &str) -> String {
    let hash = asset.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3) // FNV-1a
    });
    format!("{hash:016x}")
}

/// Warnings if the numbers cannot be trusted now: the most serious in full, further ones in one line that opens.
fn banner(base: &str, content: &SummaryContent) -> Markup {
    let (blind, serious): (Vec<_>, Vec<_>) = content
        .problems
        .iter()
        .filter(|problem| problem.severity == Severity::Serious)
        .partition(|problem| problem.name == NOT_HEARING && content.hearing.blind);
    let mut warnings: Vec<(bool, Markup)> = Vec::new();
    if content.hearing.blind {
        let said = html! {
            strong { "Rollcall is blind. " }
            "It cannot prove that it hears the fleet, and declares no unit offline until it can."
            @for problem in blind { br; (brief(base, problem)) }
        };
        warnings.push((true, said));
    }
    if content.breaker_tripped == Some(true) {
        let said = html! {
            strong { "A large part of the fleet fell silent at once. " }
            "Notifications are held until units return, or until an operator releases them: see "
            a href={ (base) "/incidents" } { "incidents" } "."
        };
        warnings.push((true, said));
    }
    warnings.extend(serious.into_iter().map(|problem| (true, brief(base, problem))));
    if let Some(until) = content.hearing.settling_until.filter(|_| !content.hearing.blind) {
        let said = html! {
            strong { "Rollcall was blind, and hears again. " }
            "Units get extra time after that: one may be declared offline later than usual, until "
            time datetime=(until) { (until) } "."
        };
        warnings.push((false, said));
    }
    if !content.incomplete.is_empty() {
        let said = html! {
            strong { "Units are missing here. " }
            "Not all units are known of " (content.incomplete.join(", ")) "."
        };
        warnings.push((false, said));
    }
    let less = content.problems.iter().filter(|problem| problem.severity == Severity::Warning);
    warnings.extend(less.map(|problem| (false, brief(base, problem))));
    html! {
        @if let Some((is_serious, said)) = warnings.first() {
            div.banner.serious[*is_serious] role=(if *is_serious { "alert" } else { "status" }) { (said) }
        }
        @match warnings.get(1..).unwrap_or_default() {
            [] => {}
            further => details.banner.serious[further.iter().any(|(is_serious, _)| *is_serious)] #further-warnings {
                summary { (further.len()) @if further.len() == 1 { " more warning" } @else { " more warnings" } }
                ul { @for (_, said) in further { li { (said) } } }
            }
        }
    }
}

/// A problem with a short quote. The page of instances has its whole text.
fn brief(base: &str, problem: &InstanceProblem) -> Markup {
    html! {
        strong { a href={ (base) "/instances" } { (problem.instance) } ": " }
        (advice(&with_short_quote(&problem.text)))
    }
}

/// The text, whose quote, such as the answer of a receiver, is cut.
fn with_short_quote(text: &str) -> String {
    let (Some(begin), Some(end)) = (text.find('"'), text.rfind('"')) else { return text.to_owned() };
    match text[begin + 1..].char_indices().nth(QUOTED) {
        Some((length, _)) if begin + 1 + length < end => {
            format!("{}…{}", &text[..begin + 1 + length], &text[end..])
        }
        _ => text.to_owned(),
    }
}

/// The text of a problem, in which a command stands between backticks.
pub(super) fn advice(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (super::format::text(part)) } } @else { (super::format::text(part)) }
        }
    }
}

pub(super) fn may_change(caller: &Caller) -> bool {
    caller.require(Role::Operator).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quote_of_a_banner_is_short_and_the_advice_behind_it_stays() {
        let (long, cut) = ("ü".repeat(QUOTED + 1), format!("{}…", "ü".repeat(QUOTED)));
        let (fits, json) = ("ü".repeat(QUOTED), format!("{{\"error\":\"{long}"));
        let json_cut: String = json.chars().take(QUOTED).collect();
        for (text, expected) in [
            ("hook refused; try `rollcall`".to_owned(), "hook refused; try `rollcall`".to_owned()),
            (format!("500, \"{fits}\"; try `x`"), format!("500, \"{fits}\"; try `x`")),
            (format!("500, \"{long}\"; try `x`"), format!("500, \"{cut}\"; try `x`")),
            (format!("500, \"{json}\"; try `x`"), format!("500, \"{json_cut}…\"; try `x`")),
            ("one \" alone".to_owned(), "one \" alone".to_owned()),
        ] {
            assert_eq!(with_short_quote(&text), expected);
        }
        let markup = advice("a <b>; try `rollcall check`, or `x`").into_string();
        assert_eq!(markup, "a &lt;b&gt;; try <code>rollcall check</code>, or <code>x</code>");
    }
}
