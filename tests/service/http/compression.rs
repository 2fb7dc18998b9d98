//! Which answers are compressed, and which are not.

use std::io::Read;

use flate2::read::GzDecoder;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};

use super::world::Fleet;

#[tokio::test]
async fn pages_and_the_api_are_compressed_for_clients_that_take_it() {
    let fleet = Fleet::start().await;
    let ask = |path: &str, coding: &str| {
        fleet.client.get(format!("{}{path}", fleet.url)).header(ACCEPT_ENCODING, coding).send()
    };
    for path in ["/", "/silences", "/assets/style.css", "/api/v1/openapi.json", "/metrics", "/configuration"]
    {
        let plain = ask(path, "identity").await.unwrap();
        assert!(!plain.headers().contains_key(CONTENT_ENCODING), "{path}");
        assert_eq!(plain.headers()[VARY], "accept-encoding", "{path}");
        let plain = plain.bytes().await.unwrap();
        let short = ask(path, "br, gzip").await.unwrap();
        assert_eq!(short.headers()[CONTENT_ENCODING], "gzip", "{path}");
        assert!(!short.headers().contains_key(CONTENT_LENGTH), "{path}");
        let short = short.bytes().await.unwrap();
        let mut text = Vec::new();
        GzDecoder::new(&short[..]).read_to_end(&mut text).unwrap();
        assert!(short.len() * 3 < plain.len() * 2, "{path}: {} of {}", short.len(), plain.len());
        // Metrics and pages change from one answer to the next.
        assert!(text.len().abs_diff(plain.len()) < 500, "{path}: {} and {}", text.len(), plain.len());
    }
    for path in ["/healthz", "/api/v1/stream"] {
        assert!(!ask(path, "gzip").await.unwrap().headers().contains_key(CONTENT_ENCODING), "{path}");
    }
}
