//! Checks the database of history, and the version of its schema.

use super::{Finding, TIMEOUT};
use crate::history::{self, Database, HistoryConfig};

const NAME: &str = "history";

pub(super) async fn examine(config: Option<&HistoryConfig>) -> Option<Finding> {
    let HistoryConfig { access, .. } = config?;
    let checked = async {
        let database = Database::connect(access).await?;
        history::stored_version(&database, access).await
    };
    let address = &access.address;
    Some(match tokio::time::timeout(TIMEOUT, checked).await {
        Ok(Ok(Some(history::VERSION))) => {
            Finding::ok(NAME, format!("{address} has it in schema {}", access.schema))
        }
        Ok(Ok(None)) => Finding::ok(NAME, format!("{address} answers; the schema is made at the start")),
        Ok(Ok(Some(version))) => {
            let text =
                format!("{address} has version {version}, and this program writes {}", history::VERSION);
            Finding::fail(NAME, format!("{text}; use the program that made it, or another history.schema"))
        }
        Ok(Err(error)) => Finding::fail(NAME, error.to_string()),
        Err(_) => {
            let seconds = TIMEOUT.as_secs();
            Finding::fail(NAME, format!("{address} does not answer within {seconds} s; check history.url"))
        }
    })
}
