//! A client of the same broker with all rights: it connects with the id of another client, and publishes where only
//! Rollcall should.

use std::time::Duration;

use rollcall::clock::{Timestamp, monotonic};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::devices::{hello, now};

/// How long a broker may take to answer.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Takes over the session of a client for the time `hold`. `false`: the broker did not answer.
pub async fn steal_session(port: u16, client_id: &str, hold: Duration) -> bool {
    let thief = comes(port, client_id).await;
    tokio::time::sleep(hold).await;
    thief.is_ok()
}

/// Publishes forged canaries on the topic of a client for `span`: as if an instance had sent them, long ago or far
/// ahead, with numbers that hide losses. Returns how many the broker has accepted.
pub async fn forge_canaries(port: u16, client_id: &str, span: Duration) -> usize {
    let Ok(mut stream) = comes(port, "forger").await else { return 0 };
    let topic = format!("rollcall/canary/{client_id}");
    let (began, mut forged) = (monotonic(), 0);
    while monotonic().duration_since(began) < span {
        let moments = [now(), now() + Duration::from_secs(3600), Timestamp::ZERO];
        let sent_at = moments[forged % moments.len()].as_millis();
        let seq = [u64::MAX, 1 << 20, 0, forged as u64][forged % 4];
        let mac = "0".repeat(32);
        let payloads = [
            format!(r#"{{"instance":"{client_id}","seq":{seq},"sent_at":{sent_at},"mac":"{mac}"}}"#),
            format!(r#"{{"seq":{seq},"sent_at":{sent_at}}}"#),
            "{".to_owned(),
        ];
        let packet = publish(&topic, payloads[forged % payloads.len()].as_bytes());
        let mut answer = [0; 4];
        let sent = async {
            stream.write_all(&packet).await?;
            stream.read_exact(&mut answer).await
        };
        if !matches!(tokio::time::timeout(MAX_WAIT, sent).await, Ok(Ok(_))) {
            break;
        }
        forged += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    forged
}

async fn comes(port: u16, client_id: &str) -> std::io::Result<TcpStream> {
    let coming = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(&hello(client_id)).await?;
        let mut welcome = [0; 4];
        stream.read_exact(&mut welcome).await?;
        Ok(stream)
    };
    tokio::time::timeout(MAX_WAIT, coming).await?
}

/// PUBLISH at QoS 1.
fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    let length = 2 + topic.len() + 2 + payload.len();
    assert!(length < 16_384, "{length}");
    let mut out = vec![0x32];
    match length {
        0..128 => out.push(length as u8),
        _ => out.extend([(length % 128) as u8 | 0x80, (length / 128) as u8]),
    }
    out.extend((topic.len() as u16).to_be_bytes());
    out.extend(topic.bytes());
    out.extend([0, 1]);
    out.extend(payload);
    out
}
