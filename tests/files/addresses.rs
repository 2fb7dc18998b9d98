//! The addresses of `docs/addresses.toml`: `make addresses` writes them wherever they stand, and an empty one leaves nothing.

use std::path::Path;
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files that have addresses.
const FILES: [&str; 9] = [
    "README.md",
    "docs/install.md",
    "docs/addresses.toml",
    "Dockerfile",
    "config/kubernetes/chart/Chart.yaml",
    "config/kubernetes/chart/values.yaml",
    "config/kubernetes/base/kustomization.yaml",
    "config/prometheus/rules/rollcall-alerts.yml",
    "tests/files/rules/alerts.yml",
];

/// A copy of the repository with other addresses.
struct Copy(tempfile::TempDir);

impl Copy {
    fn new() -> Copy {
        let dir = tempfile::tempdir().unwrap();
        for path in FILES.into_iter().chain(["Cargo.toml"]) {
            let to = dir.path().join(path);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(root().join(path), to).unwrap();
        }
        Copy(dir)
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.0.path().join(path)).unwrap()
    }

    /// Gives every address a value, or none, and writes them.
    fn with(&self, value: impl Fn(&str) -> String) {
        let addresses = self.read("docs/addresses.toml");
        let line = |line: &str| match line.split_once(" = ") {
            Some((name, _)) if !line.starts_with('#') => format!("{name} = \"{}\"\n", value(name)),
            _ => format!("{line}\n"),
        };
        let addresses: String = addresses.lines().map(line).collect();
        std::fs::write(self.0.path().join("docs/addresses.toml"), addresses).unwrap();
        let written = Command::new(root().join(".ci/addresses")).arg(self.0.path()).output().unwrap();
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    }
}

#[test]
fn the_repository_has_the_addresses_of_its_list() {
    let copy = Copy::new();
    let written = Command::new(root().join(".ci/addresses")).arg(copy.0.path()).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    for path in FILES {
        let here = std::fs::read_to_string(root().join(path)).unwrap();
        assert!(copy.read(path) == here, "{path} differs from docs/addresses.toml: make addresses");
    }
}

#[test]
fn addresses_stand_where_they_are_known_and_leave_nothing_where_they_are_not() {
    let copy = Copy::new();
    copy.with(|_| String::new());
    let without: Vec<String> = FILES.iter().map(|path| copy.read(path)).collect();
    copy.with(|name| match name {
        "image" => "registry.example.org/rollcall".to_owned(),
        name => format!("https://{name}.example.org/"),
    });
    let image = "registry.example.org/rollcall";
    for (path, expected) in [
        ("README.md", "<https://source.example.org/>"),
        ("README.md", "<https://releases.example.org/>"),
        ("docs/install.md", concat!("`registry.example.org/rollcall:", env!("CARGO_PKG_VERSION"), "`")),
        ("docs/install.md", "<https://documentation.example.org/README.md>"),
        ("Dockerfile", "LABEL org.opencontainers.image.source=\"https://source.example.org/\""),
        ("config/kubernetes/chart/Chart.yaml", "home: https://documentation.example.org/README.md"),
        ("config/kubernetes/chart/values.yaml", &format!("\n  repository: {image}\n")),
        ("config/kubernetes/base/kustomization.yaml", &format!("\n    newName: {image}\n")),
        (
            "config/prometheus/rules/rollcall-alerts.yml",
            "runbook_url: https://documentation.example.org/runbook.md#rollcallblind\n",
        ),
        (
            "tests/files/rules/alerts.yml",
            "runbook_url: https://documentation.example.org/runbook.md#rollcallmassoffline\n",
        ),
    ] {
        assert!(copy.read(path).contains(expected), "{path} has no {expected}");
    }
    let (rules, named) =
        (copy.read("config/prometheus/rules/rollcall-alerts.yml"), "runbook: docs/runbook.md#");
    assert!(!rules.contains(named), "both a link and a name: {rules}");
    copy.with(|_| String::new());
    for (path, without) in FILES.iter().zip(without) {
        assert!(copy.read(path) == without, "{path} keeps something of the addresses");
    }
    let rules = copy.read("config/prometheus/rules/rollcall-alerts.yml");
    let annotated = |key: &str| rules.lines().filter(|line| line.trim_start().starts_with(key)).count();
    assert_eq!((annotated("runbook_url: "), annotated("runbook: ")), (0, annotated("summary: ")));
}
