//! Every block is what its language says: configurations load, queries and rules are sound, commands exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use clap::{CommandFactory, Parser};
use rollcall::cli::CommandLine;
use serde_json::Value;

use super::{Block, Page, blocks, none, pages, read, root};
use crate::reference::load;
use crate::support::postgres::Postgres;
use rollcall::history::{Database, prepare};

/// The languages that a test understands; `text` is for pictures.
const LANGUAGES: [&str; 9] = ["toml", "sh", "json", "yaml", "promql", "python", "text", "console", "sql"];

/// Programs that commands of the documentation call beside Rollcall.
const PROGRAMS: [&str; 26] = [
    "apt",
    "dnf",
    "zypper",
    "helm",
    "kubectl",
    "amtool",
    "cargo",
    "make",
    "chmod",
    "curl",
    "mosquitto_pub",
    "mosquitto_passwd",
    "docker",
    "DEMO_FLEET=1",
    "REDIS_URL=redis-cluster://cluster-1:6379,cluster-2:6379,cluster-3:6379",
    "install",
    "useradd",
    "runuser",
    "openssl",
    "systemctl",
    "redis-cli",
    "sqlite3",
    "printf",
    "git",
    "sha256sum",
    "tar",
];

/// A command of a block: its words as the shell makes them, without substitutions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub place: String,
    pub text: String,
    pub words: Vec<String>,
}

impl Line {
    /// The arguments of Rollcall, if the command runs it, in whatever way.
    pub fn arguments(&self) -> Option<Vec<String>> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let after = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        match words.as_slice() {
            ["rollcall" | "./target/release/rollcall" | "./target/dist/rollcall", rest @ ..] => after(rest),
            ["cargo", "run", "--", rest @ ..] => after(rest),
            ["runuser", "-u", _, "--", "rollcall", rest @ ..] => after(rest),
            _ => None,
        }
    }
}

/// The commands of all blocks of shell.
pub(super) fn lines() -> Vec<Line> {
    let blocks = blocks(&["sh", "console"]);
    let lines: Vec<Line> = blocks.iter().flat_map(commands).collect();
    assert!(lines.len() > 50, "the commands are gone");
    lines
}

fn commands(block: &Block) -> Vec<Line> {
    let text = block.text.replace("\\\n", " ");
    let lines = text.lines().map(|line| line.trim_start_matches("$ ").trim());
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| Line { place: block.place.clone(), text: line.to_owned(), words: words(line) }).collect()
}

/// The words of a command up to its comment; quotes hold them together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) =
        (Vec::new(), None, None);
    for c in line.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

fn succeeds(output: std::io::Result<Output>, what: &str) {
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn every_block_has_a_language_that_a_test_understands() {
    let all = pages().into_iter().flat_map(|page| page.blocks());
    let odd = all.filter(|block| !LANGUAGES.contains(&block.language.as_str()));
    none(odd.map(|block| format!("{}: {:?}", block.place, block.language)).collect());
}

#[test]
fn every_configuration_loads() {
    let all = blocks(&["toml"]);
    assert!(all.len() > 20, "{} configurations were found", all.len());
    for block in all {
        load(&block.text, Path::new(&block.place));
    }
}

#[test]
fn every_example_of_json_is_json() {
    for block in blocks(&["json"]) {
        let parsed: Result<Value, _> = serde_json::from_str(&block.text);
        assert!(parsed.is_ok(), "{}: {parsed:?}", block.place);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_history_runs() {
    let postgres = Postgres::start();
    let access = postgres.access();
    let mut database = Database::connect(&access).await.unwrap();
    prepare(&mut database, &access, None).await.unwrap();
    let (client, queries) = (postgres.client(&access.schema).await, blocks(&["sql"]));
    assert!(queries.len() > 3, "the queries are gone");
    for query in queries {
        let done = client.batch_execute(&query.text).await;
        assert!(done.is_ok(), "{}: {done:?}", query.place);
    }
}

#[test]
fn every_query_and_every_scrape_configuration_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let mut rules = "groups:\n  - name: docs\n    rules:\n".to_owned();
    for (number, block) in blocks(&["promql"]).iter().enumerate() {
        let query = serde_json::to_string(block.text.trim()).unwrap();
        rules += &format!("      - {{ record: \"docs:number:{number}\", expr: {query} }}\n");
    }
    assert!(rules.contains("docs:number:2"), "the queries are gone");
    let file = dir.path().join("rules.yml");
    std::fs::write(&file, rules).unwrap();
    succeeds(Command::new("promtool").args(["check", "rules"]).arg(&file).output(), "promql");
    for block in blocks(&["yaml"]) {
        let file = dir.path().join("prometheus.yml");
        std::fs::write(&file, &block.text).unwrap();
        let checked = Command::new("promtool").args(["check", "config", "--syntax-only"]).arg(&file).output();
        succeeds(checked, &block.place);
    }
}

#[test]
fn every_command_is_one_that_there_is() {
    let mut found = BTreeSet::new();
    for line in lines() {
        let says = |what: &str| format!("{}: {} {what}", line.place, line.text);
        if let Some(arguments) = line.arguments() {
            found.extend(misunderstood(&arguments).map(|why| says(&why)));
        } else if !PROGRAMS.contains(&line.words[0].as_str()) {
            found.insert(says("calls a program that no test knows"));
        }
        if line.words[0] == "make" && !read("Makefile").contains(&format!("\n{}:", line.words[1])) {
            found.insert(says("is not a target of the Makefile"));
        }
        let files = line.words.iter().filter(|word| word.starts_with("config/"));
        found.extend(
            files.filter(|file| !root().join(file).exists()).map(|file| says(&format!("{file} is gone"))),
        );
    }
    none(found);
}

#[test]
fn every_command_in_a_sentence_is_one_that_there_is() {
    let mut found = BTreeSet::new();
    for page in pages() {
        for code in page.code() {
            let Some(rest) = code.strip_prefix("rollcall ") else { continue };
            // A synopsis has options in brackets, and stands for many commands.
            let rest: String = rest.split(" [").next().unwrap_or_default().replace("COMMAND", "serve");
            let rest = rest.replace("PLACE", "embedded:x").replace("KIND/UNIT", "detector/pump-7");
            let rest = rest.replace(" ID", " 5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11");
            let only_a_name = !rest.contains(' ');
            let arguments = words(&rest);
            if let Some(why) =
                misunderstood(&arguments).filter(|why| !only_a_name || why.contains("unrecognized"))
            {
                found.insert(format!("{}: {code}: {why}", page.path.display()));
            }
        }
    }
    none(found);
}

/// The objections of the real command line to these arguments.
fn misunderstood(arguments: &[String]) -> Option<String> {
    let all = std::iter::once("rollcall").chain(arguments.iter().map(String::as_str));
    let error = CommandLine::try_parse_from(all).err()?;
    let text = error.to_string();
    error.use_stderr().then(|| text.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn the_page_of_commands_has_every_command_and_every_block_is_shell() {
    let page = Page::new("docs/commands.md");
    for command in
        CommandLine::command().get_subcommands().filter(|it| it.get_name() != "help" && !it.is_hide_set())
    {
        let row = format!("| `rollcall {}", command.get_name());
        assert!(page.text.contains(&row), "docs/commands.md has no row of {}", command.get_name());
    }
    for block in blocks(&["sh"]) {
        let checked = Command::new("bash").args(["-n", "-c", &block.text]).output();
        succeeds(checked, &block.place);
    }
}

#[test]
fn an_error_in_a_block_is_found() {
    let page = Page { path: "x.md".into(), text: "```sh\na 'b c' \\\n  d   # e\n# f\n```\n".into() };
    let lines = commands(&page.blocks()[0]);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0].words, ["a", "b c", "d"]);
    let wrong = |text: &str| misunderstood(&words(text)).is_some();
    assert!(wrong("serv") && wrong("serve --confg x") && wrong("move --from nowhere --to embedded:x"));
    assert!(!wrong("serve --config x") && !wrong("--version"));
}
