//! The workflows of GitHub and the package of a release: what they run and name is in the repository.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

const WORKFLOWS: [&str; 2] = [".github/workflows/ci.yml", ".github/workflows/release.yml"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn workflow(path: &str) -> Value {
    serde_yaml_ng::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The jobs of a workflow by name.
fn jobs(workflow: &Value) -> Vec<(&String, &Value)> {
    workflow["jobs"].as_object().expect("a workflow has jobs").iter().collect()
}

/// The values under a key of the steps of all jobs.
fn steps(workflow: &Value, key: &str) -> Vec<String> {
    let steps = jobs(workflow).into_iter().flat_map(|(_, job)| job["steps"].as_array().expect("steps"));
    steps.filter_map(|step| step[key].as_str().map(str::to_owned)).collect()
}

/// The lists of a matrix: each is what one job of it gets.
fn matrix<'a>(workflow: &'a Value, job: &str) -> Vec<&'a Value> {
    let matrix = &workflow["jobs"][job]["strategy"]["matrix"]["include"];
    matrix.as_array().unwrap_or_else(|| panic!("{job} has no matrix")).iter().collect()
}

#[test]
fn every_command_of_a_workflow_is_here_or_is_a_program_of_the_runner() {
    let makefile = read("Makefile");
    for path in WORKFLOWS {
        let commands = steps(&workflow(path), "run");
        assert!(!commands.is_empty(), "{path} runs nothing");
        for command in commands {
            let mut words = command.split_whitespace();
            match words.next().unwrap() {
                "make" => {
                    let target = words.next().unwrap();
                    assert!(makefile.contains(&format!("\n{target}: ##")), "{path}: make has no {target}");
                }
                "grep" => assert!(root().join(words.next_back().unwrap()).is_file(), "{path}: {command}"),
                "gh" | "docker" | "rustup" | "sha256sum" => {}
                "sudo" => assert!(root().join(words.next().unwrap()).is_file(), "{path}: {command}"),
                script => assert!(root().join(script).is_file(), "{path}: {command}"),
            }
        }
    }
}

#[test]
fn every_action_is_pinned_to_a_release() {
    for path in WORKFLOWS {
        for action in steps(&workflow(path), "uses") {
            let version = action.split_once("@v").map_or("", |(_, version)| version);
            let numbers = version.split('.').filter(|part| part.parse::<u32>().is_ok());
            assert_eq!(numbers.count(), 3, "{path}: {action}");
        }
    }
}

#[test]
fn every_job_waits_for_one_that_is_there_and_has_a_runner() {
    for path in WORKFLOWS {
        let workflow = workflow(path);
        for (name, job) in jobs(&workflow) {
            assert!(job["runs-on"].is_string(), "{path}: {name} runs nowhere");
            if let Some(before) = job["needs"].as_str() {
                assert!(workflow["jobs"][before].is_object(), "{path}: {name} waits for {before}");
            }
        }
    }
}

#[test]
fn a_release_has_a_static_program_and_an_image_for_each_architecture() {
    let release = workflow(".github/workflows/release.yml");
    let of = |job: &str, key: &str| -> BTreeSet<String> {
        matrix(&release, job).into_iter().map(|one| one[key].as_str().unwrap().to_owned()).collect()
    };
    let targets = ["aarch64-unknown-linux-musl", "x86_64-unknown-linux-musl"].map(str::to_owned);
    assert_eq!(of("package", "target"), BTreeSet::from(targets));
    assert_eq!(of("image", "arch"), BTreeSet::from(["amd64", "arm64"].map(str::to_owned)));
    // A program is built on a machine that can run it, because it writes its own manual pages.
    assert_eq!(of("package", "runner"), of("image", "runner"));
    let dist = read(".ci/dist");
    for uploaded in ["tar.gz", "deb", "rpm", "sha256"].map(|kind| format!(" target/package/*.{kind} ")) {
        assert!(
            steps(&release, "run").iter().any(|step| format!("{step} ").contains(&uploaded)),
            "{uploaded}"
        );
    }
    assert!(dist.contains("cd target/package") && dist.contains(".ci/pack \"$package\""));
    // They are tried before they can be downloaded.
    let commands = steps(&release, "run");
    let at = |what: &str| commands.iter().position(|step| step.contains(what)).expect(what);
    assert!(at("make dist") < at(".ci/packages") && at(".ci/packages") < at("target/package/*.deb"));
}

#[test]
fn the_rpm_requires_only_what_fedora_rhel_and_suse_have() {
    let spec = read("config/packages/rpm/rollcall.spec");
    let lines = spec.lines().filter(|line| line.starts_with("Requires"));
    let required: Vec<&str> = lines.flat_map(|line| line.split_once(": ").unwrap().1.split(", ")).collect();
    // The packages of useradd, systemctl and runuser. Only the last two have one name everywhere.
    let known = ["(shadow-utils or shadow)", "systemd", "util-linux"];
    assert_eq!(required, known, "what are they called on Fedora, and on SUSE?");
}

#[test]
fn every_packed_file_is_in_the_repository() {
    let dist = read(".ci/dist");
    let packed = dist.lines().find_map(|line| line.strip_prefix("cp -r ")).expect("files are copied");
    let files: Vec<&str> = packed.split(' ').filter(|word| !word.starts_with('"')).collect();
    assert!(files.contains(&"LICENSE") && files.contains(&"config"), "{files:?}");
    for file in files.into_iter().chain([
        ".ci/sbom.jq",
        ".ci/need",
        ".ci/made-of",
        ".ci/pack",
        ".ci/plain-links",
        "config/systemd/rollcall.service",
    ]) {
        assert!(root().join(file).exists(), "{file} is not here");
    }
}

#[test]
fn a_package_lists_its_components() {
    let metadata = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("metadata.json");
    std::fs::write(&file, metadata.stdout).unwrap();
    let made = std::process::Command::new("jq")
        .args(["--arg", "time", "2026-01-01T00:00:00Z", "-f"])
        .arg(root().join(".ci/sbom.jq"))
        .arg(file)
        .output()
        .unwrap_or_else(|error| panic!("jq: {error}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let sbom: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(sbom["metadata"]["component"]["name"], "rollcall");
    let names: BTreeSet<&str> =
        sbom["components"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    for (name, is_in) in [
        ("tokio", true),
        ("libsqlite3-sys", true),
        ("tungstenite", true),
        ("proptest", false),
        ("rcgen", false),
    ] {
        assert_eq!(names.contains(name), is_in, "{name}");
    }
    let refs: BTreeSet<&str> =
        sbom["dependencies"].as_array().unwrap().iter().map(|one| one["ref"].as_str().unwrap()).collect();
    assert_eq!(refs.len(), names_and_versions(&sbom).len() + 1);
    for one in sbom["dependencies"].as_array().unwrap() {
        for used in one["dependsOn"].as_array().unwrap() {
            assert!(refs.contains(used.as_str().unwrap()), "{used}");
        }
    }
}

fn names_and_versions(sbom: &Value) -> BTreeSet<&str> {
    sbom["components"].as_array().unwrap().iter().map(|one| one["purl"].as_str().unwrap()).collect()
}
