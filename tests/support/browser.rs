//! A browser: Chromium without a window, driven over WebDriver (W3C), which is JSON over HTTP.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use data_encoding::BASE64;
use rollcall::simulate::servers::{ExitCleanup, Server, free_port};
use serde_json::{Value, json};

use super::http::CLIENT;

/// The longest wait for a fact.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// How long one command may take on a busy machine.
const COMMAND: Duration = Duration::from_secs(90);

/// How often Tab is pressed to reach an element.
const MAX_TABS: usize = 50;

/// The name of a reference to an element, which the standard fixes.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys by their names in the standard.
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";
pub const TAB: &str = "\u{e004}";

const ARGUMENTS: [&str; 10] = [
    "--headless",
    // A container has no sandbox for an ordinary program, and a small /dev/shm.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    // A picture of a page ends where the bar begins.
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
];

/// What Lighthouse rates.
const RATED: [&str; 4] = ["performance", "accessibility", "best-practices", "seo"];

/// A screen and a telephone.
pub const SIZES: [(&str, (u32, u32)); 2] = [("desktop", (1280, 800)), ("phone", (390, 844))];
pub const SCHEMES: [&str; 2] = ["light", "dark"];

/// A running browser with one window. Dropping the value ends it.
pub struct Browser {
    /// The URL of its session.
    session: String,
    process: u64,
    cleanup: Option<ExitCleanup>,
    _driver: Server,
}

impl Browser {
    /// Starts a browser that keeps its data in `dir`.
    pub async fn start(dir: &Path) -> Browser {
        let port = free_port().unwrap();
        let arguments = [format!("--port={port}")];
        let driver = Server::start("chromedriver", &arguments, dir, port, "started successfully")
            .expect("chromedriver is in the Debian package chromium-driver");
        let profile = format!("--user-data-dir={}", dir.join("profile").display());
        let arguments: Vec<&str> = ARGUMENTS.into_iter().chain([profile.as_str()]).collect();
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        } } });
        let url = format!("http://127.0.0.1:{port}/session");
        let begun = send("POST", &url, &wanted).await.expect("Chromium is in the Debian package chromium");
        let id = begun["sessionId"].as_str().expect("a session has an id");
        let process = begun["capabilities"]["goog:processID"].as_u64().expect("a browser is a process");
        let cleanup = ExitCleanup::new("kill -9 \"$1\"", process.to_string()).unwrap();
        Browser { session: format!("{url}/{id}"), process, cleanup: Some(cleanup), _driver: driver }
    }

    /// Goes to a page and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.command("url", json!({ "url": url })).await;
    }

    /// The result of a script in the page: `return` sets it, and `arguments` holds the values that are passed.
    pub async fn run(&self, script: &str, arguments: Value) -> Value {
        self.command("execute/sync", json!({ "script": script, "args": arguments })).await
    }

    /// The result of a script in the page that hands it over by calling its last argument.
    pub async fn run_async(&self, script: &str, arguments: Value) -> Value {
        self.command("execute/async", json!({ "script": script, "args": arguments })).await
    }

    /// Waits until an expression is true in the page, whichever page is loaded by then.
    pub async fn eventually(&self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression})");
        let wanted = json!({ "script": script, "args": [] });
        let url = format!("{}/execute/sync", self.session);
        let mut every = tokio::time::interval(Duration::from_millis(50));
        let awaited = async {
            // A page that goes away takes the script with it.
            while !matches!(send("POST", &url, &wanted).await, Ok(Value::Bool(true))) {
                every.tick().await;
            }
        };
        if tokio::time::timeout(MAX_WAIT, awaited).await.is_err() {
            panic!("never came true: {what}; {} shows:\n{}", self.path().await, self.text().await);
        }
    }

    /// Waits for a text on the page.
    pub async fn shows(&self, text: &str) {
        let quoted = Value::from(text);
        self.eventually(text, &format!("document.body.innerText.includes({quoted})")).await;
    }

    /// The text of the page as a reader sees it.
    pub async fn text(&self) -> String {
        let text = self.run("return document.body.innerText", json!([])).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// The path and the query of the page.
    pub async fn path(&self) -> String {
        let path = self.run("return location.pathname + location.search", json!([])).await;
        path.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks on an element, as a mouse does: an element that is hidden or covered cannot be clicked on.
    pub async fn click(&self, selector: &str) {
        let element = self.element(selector).await;
        self.command(&format!("element/{element}/click"), json!({})).await;
    }

    /// Writes into a field, in place of its content.
    pub async fn write(&self, selector: &str, text: &str) {
        let element = self.element(selector).await;
        self.command(&format!("element/{element}/clear"), json!({})).await;
        self.command(&format!("element/{element}/value"), json!({ "text": text })).await;
    }

    /// Presses keys, one after the other, wherever the focus is.
    pub async fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            let stroke = |kind: &str| json!({ "type": kind, "value": key.to_string() });
            [stroke("keyDown"), stroke("keyUp")]
        });
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes.collect::<Vec<Value>>() });
        self.command("actions", json!({ "actions": [keyboard] })).await;
    }

    /// Moves the focus on with Tab until it is on this element.
    pub async fn tab_to(&self, selector: &str) {
        let is_there = format!("return document.activeElement.matches({})", Value::from(selector));
        for _ in 0..MAX_TABS {
            self.press(TAB).await;
            if self.run(&is_there, json!([])).await == true {
                return;
            }
        }
        panic!(
            "{MAX_TABS} Tabs do not reach {selector}; {} shows:\n{}",
            self.path().await,
            self.text().await
        );
    }

    /// Gives the page this width and height, and a scheme of colours: `light` or `dark`.
    pub async fn look(&self, (width, height): (u32, u32), scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", scheme).await;
    }

    /// Holds back every answer for this time.
    pub async fn delay(&self, by: Duration) {
        let conditions = json!({
            "offline": false, "latency": by.as_millis(), "downloadThroughput": -1, "uploadThroughput": -1,
        });
        self.devtools("Network.emulateNetworkConditions", conditions).await;
    }

    /// Writes a picture of the whole page.
    pub async fn picture(&self, file: &Path) {
        let wanted = json!({ "format": "png", "captureBeyondViewport": true });
        let answer = self.devtools("Page.captureScreenshot", wanted).await;
        let picture = BASE64.decode(answer["data"].as_str().unwrap_or_default().as_bytes()).unwrap();
        std::fs::create_dir_all(file.parent().expect("a picture is in a folder")).unwrap();
        std::fs::write(file, picture).unwrap();
    }

    /// The warnings and errors on the console since the last call.
    pub async fn complaints(&self) -> Vec<String> {
        let lines = self.log("browser").await;
        let bad = lines.iter().filter(|line| matches!(line["level"].as_str(), Some("SEVERE" | "WARNING")));
        bad.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The URLs that pages have requested since the last call; requests of the browser itself are left out.
    pub async fn requests(&self) -> Vec<String> {
        let url_of = |line: &Value| {
            let event: Value = serde_json::from_str(line["message"].as_str()?).ok()?;
            let is_request = event["message"]["method"] == "Network.requestWillBeSent";
            let url = is_request.then(|| event["message"]["params"]["request"]["url"].as_str())??;
            ["http", "ws"].iter().any(|scheme| url.starts_with(scheme)).then(|| url.to_owned())
        };
        self.log("performance").await.iter().filter_map(url_of).collect()
    }

    async fn log(&self, kind: &str) -> Vec<Value> {
        let lines = self.command("se/log", json!({ "type": kind })).await;
        lines.as_array().cloned().unwrap_or_default()
    }

    async fn devtools(&self, name: &str, parameters: Value) -> Value {
        self.command("goog/cdp/execute", json!({ "cmd": name, "params": parameters })).await
    }

    /// Waits for the element and returns its reference.
    async fn element(&self, selector: &str) -> String {
        let quoted = Value::from(selector);
        self.eventually(selector, &format!("document.querySelector({quoted})")).await;
        let found = self.command("element", json!({ "using": "css selector", "value": selector })).await;
        found[ELEMENT].as_str().expect("an element has a reference").to_owned()
    }

    async fn command(&self, path: &str, body: Value) -> Value {
        match send("POST", &format!("{}/{path}", self.session), &body).await {
            Ok(answer) => answer,
            Err(why) => panic!("{path} of {body}: {why}"),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.cleanup = None;
        // The other processes of the browser end with this one.
        let _ = Command::new("kill").args(["-9", &self.process.to_string()]).status();
    }
}

/// Sends a command and returns its value.
async fn send(method: &str, url: &str, body: &Value) -> Result<Value, String> {
    let method = method.parse().expect("a method");
    let request = CLIENT.request(method, url).header("content-type", "application/json").timeout(COMMAND);
    let answer = request.body(body.to_string()).send().await.map_err(|error| error.to_string())?;
    let is_success = answer.status().is_success();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error} in {text}"))?;
    if is_success { Ok(answer["value"].clone()) } else { Err(answer["value"]["message"].to_string()) }
}

/// The folder of the pictures that tests take, for people to look at.
pub fn pictures() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots")
}

/// The text of axe-core.
pub fn axe() -> String {
    std::fs::read_to_string(fetched("axe")).unwrap()
}

/// How Lighthouse rates a page, from 0 to 100, by category.
pub fn lighthouse(url: &str) -> Vec<(String, u64)> {
    let categories = format!("--only-categories={}", RATED.join(","));
    let flags = format!("--chrome-flags={}", ARGUMENTS.join(" "));
    let output = Command::new("node")
        .arg(fetched("lighthouse"))
        .args([url, "--quiet", "--output=json", "--no-enable-error-reporting", &categories, &flags])
        .output()
        .expect("node is in the Debian package nodejs");
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("Lighthouse: {}", String::from_utf8_lossy(&output.stderr)));
    let score = |name: &&str| {
        let score = report["categories"][name]["score"].as_f64();
        ((*name).to_owned(), (100.0 * score.unwrap_or_else(|| panic!("{name} of {report}"))).round() as u64)
    };
    RATED.iter().map(score).collect()
}

/// The path of a program of npm that `.ci` fetches once.
fn fetched(name: &str) -> String {
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci").join(name);
    let output = Command::new(fetch).arg(env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} cannot be had: {said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
