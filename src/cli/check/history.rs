//! Checks the database of history, the version of its schema, whose history it is, and that it takes writes.

use super::{Finding, TIMEOUT, with_timeout};
use crate::config::Config;
use crate::engines;
use crate::history::{self, Database, HistoryConfig, fleet_digest};

const NAME: &str = "history";

pub(super) async fn examine(config: &Config) -> Option<Finding> {
    let HistoryConfig { access, .. } = config.history.as_ref()?;
    let checked = async {
        // Another finding says why the engine does not answer.
        let key = with_timeout(engines::fleet_key(&config.engine)).await.ok().flatten();
        let mut database = Database::connect(access).await?;
        let stored = history::stored(&database, access).await?;
        if stored.version.is_some() {
            history::check(&database, access, &stored, key.as_deref().map(fleet_digest).as_deref())?;
        }
        history::try_writing(&mut database, access).await?;
        Ok(match stored.version {
            Some(_) => format!("{} has it in schema {}", access.address, access.schema),
            None => format!("{} answers; the schema is made at the start", access.address),
        })
    };
    Some(match tokio::time::timeout(TIMEOUT, checked).await {
        Ok(Ok(text)) => Finding::ok(NAME, text),
        Ok(Err(error)) => Finding::fail(NAME, history::HistoryError::to_string(&error)),
        Err(_) => {
            let (address, seconds) = (&access.address, TIMEOUT.as_secs());
            Finding::fail(NAME, format!("{address} does not answer within {seconds} s; check history.url"))
        }
    })
}
