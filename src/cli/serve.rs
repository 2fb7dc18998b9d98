//! `rollcall serve`: watches the fleet until a signal stops it.

use std::process::ExitCode;

use super::remote::without_file;
use super::signals::{self, HangUp};
use super::{ConfigFile, logging};
use crate::service::{self, Reload};

pub(super) async fn run(file: ConfigFile) -> anyhow::Result<ExitCode> {
    let config = file.load()?;
    logging::start(&config.log)?;
    let reload = Reload::new(move || file.load());
    let stop = signals::stop(HangUp::Reload(reload.sender()))?;
    match &config.source {
        Some(path) => tracing::info!(file = %path.display(), "configuration loaded"),
        None => tracing::info!("every option has its default: {}", without_file()),
    }
    for warning in &config.warnings {
        tracing::warn!(option = warning.path, "{}", warning.text);
    }
    service::run_with(config, Some(reload), stop).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
