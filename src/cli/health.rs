//! `rollcall health`: whether the instance of this configuration answers, for supervisors of containers.
//!
//! The command calls the address in `http.listen`, so a probe follows the configuration, and an image needs no other
//! program.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::remote::reachable;
use super::{ConfigFile, logging, shown_json};

/// How long an answer may take: less than supervisors wait for a probe.
const TIMEOUT: Duration = Duration::from_secs(4);
/// The longest answer that is read, in bytes: the list of problems is shorter.
const MAX_ANSWER: u64 = 16 * 1024;

#[derive(Debug, Args)]
pub(super) struct HealthArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Ask whether it does its work (/readyz), not only whether it runs (/healthz).
    #[arg(long)]
    ready: bool,
}

pub(super) async fn run(arguments: HealthArguments) -> anyhow::Result<ExitCode> {
    logging::start_quietly()?;
    let address = reachable(arguments.file.load()?.http.listen);
    let page = if arguments.ready { "/readyz" } else { "/healthz" };
    let answer = tokio::time::timeout(TIMEOUT, ask(address, page)).await;
    let answer = answer.with_context(|| format!("{address} did not answer within {TIMEOUT:?}"))?;
    let answer = answer.with_context(|| format!("{address} does not answer; does rollcall serve run?"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        bail!("{address}{page} answers {status}: {}", shown_json(body));
    }
    println!("{}", shown_json(body));
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn ask(address: SocketAddr, page: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {page} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
