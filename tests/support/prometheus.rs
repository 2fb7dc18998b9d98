//! A real Prometheus and its answers.

use std::path::Path;

use rollcall::simulate::servers::{Server, free_port};
use serde_json::Value;
use url::Url;

/// A running Prometheus, which ends with this value.
pub struct Prometheus {
    server: Server,
    client: reqwest::Client,
}

impl Prometheus {
    /// Starts Prometheus with this configuration.
    pub fn start(dir: &Path, configuration: &str) -> Prometheus {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("prometheus.yml"), configuration).unwrap();
        let port = free_port().unwrap();
        let arguments = [
            "--config.file=prometheus.yml".to_owned(),
            "--storage.tsdb.path=data".to_owned(),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ];
        let ready = "Server is ready to receive web requests";
        let server = Server::start("prometheus", &arguments, dir, port, ready).unwrap();
        Prometheus { server, client: super::http::CLIENT.clone() }
    }

    /// The answer of a page; an error fails the test.
    pub async fn page(&self, page: &str, parameters: &[(&str, &str)]) -> Value {
        let url = format!("http://127.0.0.1:{}/api/v1/{page}", self.server.port());
        let url = Url::parse_with_params(&url, parameters).unwrap();
        let answer = self.client.get(url).send().await.unwrap().bytes().await.unwrap();
        let mut answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["status"], "success", "{page} {parameters:?}: {answer}");
        answer["data"].take()
    }

    /// The answer to an instant query.
    pub async fn query(&self, query: &str) -> Vec<Value> {
        let mut answer = self.page("query", &[("query", query)]).await;
        serde_json::from_value(answer["result"].take()).unwrap()
    }
}

/// The shipped rules and jobs, with Rollcall at these ports, scraped and evaluated
/// this often.
pub fn with_rules(ports: &[u16], every: &str) -> String {
    let targets: Vec<String> = ports.iter().map(|port| format!("'127.0.0.1:{port}'")).collect();
    let targets = targets.join(", ");
    format!(
        "global: {{ scrape_interval: {every}, scrape_timeout: {every}, evaluation_interval: {every} }}\n\
         rule_files: ['{}/config/prometheus/rules/*.yml']\n\
         scrape_configs:\n\
         - {{ job_name: rollcall, static_configs: [{{ targets: [{targets}] }}] }}\n\
         - {{ job_name: rollcall-units, metrics_path: /metrics/units, static_configs: [{{ targets: [{targets}] }}] }}\n",
        env!("CARGO_MANIFEST_DIR"),
    )
}
