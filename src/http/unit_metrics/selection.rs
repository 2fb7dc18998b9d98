//! The units that a request selects.

use axum::http::Uri;
use serde::Deserialize;

use crate::clock::Timestamp;
use crate::fleet::Mirror;
use crate::fleet::mirror::{Archive, FleetShard, UnitFilter};
use crate::http::UnitMetrics;
use crate::http::http_error::{HttpError, query};
use crate::http::unit_filter::{known_kind, label_pair};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    mode: Option<UnitMetrics>,
    shard: Option<u16>,
    shards: Option<u16>,
    kind: Option<String>,
    label: Option<String>,
}

pub(super) struct Selection {
    /// `None`: no units.
    pub filter: Option<UnitFilter>,
    /// 0 without shards.
    pub shard: u16,
}

impl Selection {
    /// Units that are archived at `now` have no series.
    pub fn read(
        uri: &Uri,
        default_mode: UnitMetrics,
        mirror: &Mirror,
        now: Timestamp,
    ) -> Result<Selection, HttpError> {
        let Query { mode, shard, shards, kind, label } = query(uri)?;
        let shard = fleet_shard(shard, shards, mirror.partition_count())?;
        let kind = kind.map(|kind| known_kind(&kind, mirror)).transpose()?;
        let label = label.map(|label| label_pair(&label, mirror)).transpose()?;
        let mode = mode.unwrap_or(default_mode);
        let (offline, archive) = (mode == UnitMetrics::Offline, Archive::LeftOut(now));
        let filter = UnitFilter { shard, kind, label, offline, archive };
        Ok(Selection {
            filter: (mode != UnitMetrics::Off).then_some(filter),
            shard: shard.map_or(0, |shard| shard.number),
        })
    }
}

fn fleet_shard(
    shard: Option<u16>,
    shards: Option<u16>,
    partitions: u16,
) -> Result<Option<FleetShard>, HttpError> {
    let problem = match (shard, shards) {
        (None, None) => return Ok(None),
        (Some(number), Some(of)) if number < of && of <= partitions => {
            return Ok(Some(FleetShard { number, of }));
        }
        (Some(_), Some(of)) if of > partitions => {
            format!("shards is at most {partitions}, the number of partitions (engine.partitions)")
        }
        (Some(_), Some(of)) => format!("shard is a number from 0, less than shards={of}"),
        _ => "shard and shards belong together: shard=0&shards=4 is the first of four".to_owned(),
    };
    Err(HttpError::bad_request(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_most_as_many_shards_as_partitions() {
        assert_eq!(fleet_shard(None, None, 16).unwrap(), None);
        assert_eq!(fleet_shard(Some(3), Some(4), 16).unwrap(), Some(FleetShard { number: 3, of: 4 }));
        assert_eq!(fleet_shard(Some(15), Some(16), 16).unwrap(), Some(FleetShard { number: 15, of: 16 }));
        for (shard, shards) in
            [(Some(4), Some(4)), (Some(0), Some(0)), (Some(0), Some(17)), (Some(0), None), (None, Some(4))]
        {
            assert!(fleet_shard(shard, shards, 16).is_err(), "{shard:?} of {shards:?}");
        }
    }
}
