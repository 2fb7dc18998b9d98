//! The findings about the engine: the same findings as the service has when it examines the engine, with the names of
//! its log and metrics.

use super::{Finding, with_timeout};
use crate::config::EngineConfig;
use crate::engines;
use crate::store::{ServerCondition, Warning};
use crate::telemetry::EngineWarning;

pub(super) async fn examine(config: &EngineConfig) -> Vec<Finding> {
    let (condition, servers) =
        tokio::join!(with_timeout(engines::survey(config)), with_timeout(engines::servers(config)));
    let mut findings = match condition {
        Err(why) => vec![Finding::fail("engine", why)],
        Ok(condition) => {
            let server = &condition.server;
            let text = match config.is_missing() {
                true => format!("{config} does not exist yet; it is created at the start ({server})"),
                false => format!("{config} is {server}, and grants the rights that Rollcall needs"),
            };
            let warnings = condition.warnings.iter();
            let warnings = warnings.map(|warning| finding(warning, warning.text.clone()));
            std::iter::once(Finding::ok("engine", text)).chain(warnings).collect()
        }
    };
    // Without a server that knows the others, the finding about the engine gives the reason.
    findings.extend(servers.unwrap_or_default().iter().flat_map(findings_of));
    findings
}

/// The finding that `rollcall serve` would refuse the fleet in the directory of the embedded engine. No server is asked for its
/// fleet.
pub(super) fn stored(config: &EngineConfig) -> Option<Finding> {
    let why = engines::check_stored(config).err()?;
    Some(Finding::fail("engine", why.to_string()))
}

fn findings_of(server: &ServerCondition) -> Vec<Finding> {
    let name = format!("server {}", server.address);
    let state = match &server.state {
        Ok(state) => Finding::ok(&name, state),
        Err(why) => Finding::fail(&name, why),
    };
    let warnings = server.warnings.iter();
    let warnings = warnings.map(|one| finding(one, format!("at {}: {}", server.address, one.text)));
    std::iter::once(state).chain(warnings).collect()
}

/// The finding of a warning. The service runs in spite of every warning except the one that stops its start.
fn finding(warning: &Warning, text: String) -> Finding {
    match warning.name {
        EngineWarning::EvictionPossible => Finding::fail(warning.name.as_str(), text),
        name => Finding::warn(name.as_str(), text),
    }
}
