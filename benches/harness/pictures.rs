//! Pictures of pages, where Chromium is installed: for people to look at.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use super::say;

const PATIENCE: Duration = Duration::from_secs(60);
/// The name, the size of the window, and whether the colours are dark.
const LOOKS: [(&str, &str, bool); 3] =
    [("screen", "1280,1000", false), ("screen-dark", "1280,1000", true), ("phone", "390,844", false)];

/// Takes a picture of a page in each look: `target/screenshots/<name>-<look>.png`.
pub async fn take(name: &str, url: &str) -> anyhow::Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    std::fs::create_dir_all(&folder)?;
    let profile = TempDir::new()?;
    for (look, size, is_dark) in LOOKS {
        let file = folder.join(format!("{name}-{look}.png"));
        let mut chromium = Command::new("chromium");
        chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        chromium.args([&format!("--screenshot={}", file.display()), &format!("--window-size={size}")]);
        chromium.arg(format!("--user-data-dir={}", profile.path().display()));
        if is_dark {
            chromium.arg("--blink-settings=preferredColorScheme=0");
        }
        let run = chromium.arg(url).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).status();
        match timeout(PATIENCE, run).await {
            Ok(Ok(status)) if status.success() && file.exists() => {}
            Ok(Err(why)) if why.kind() == std::io::ErrorKind::NotFound => {
                say("no pictures: Chromium is not installed");
                return Ok(());
            }
            other => anyhow::bail!("Chromium took no picture of {url}: {other:?}"),
        }
    }
    Ok(())
}
