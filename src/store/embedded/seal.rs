//! Sealing a group: fixes members, body and id of a notification, and puts it at the end of the group's
//! lane for each receiver.

use rusqlite::{Connection, params};

use super::error::DatabaseResult;
use super::groups::rest_if_nobody_waits;
use crate::clock::Timestamp;
use crate::store::Pace;
use crate::store::{notification::MOST_MEMBERS, notification::OVER, notification::notification_id};

/// How many members that are over for long are forgotten at a time.
const FORGOTTEN_AT_ONCE: i64 = 1000;

/// What a notification will say, as JSON.
#[derive(Default)]
struct Told {
    offline: Vec<String>,
    online: Vec<String>,
    blind: Vec<String>,
    /// For each of `online` who was told its silence: nothing, or a colon and the receivers.
    told_to: Vec<String>,
}

/// Seals one notification of a group. Answers how many members it has.
pub(super) fn seal_group(
    database: &Connection,
    group: i64,
    receivers: &[String],
    pace: Pace,
    now: Timestamp,
) -> DatabaseResult<usize> {
    let (partition, key, body): (u16, String, String) = database
        .prepare_cached("SELECT partition, key, body FROM groups WHERE id = ?")?
        .query_row([group], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let times = Times::of(database, group)?;
    let mut members: Vec<(String, String, Option<String>)> = database
        .prepare_cached(
            "SELECT member, letter, body FROM members WHERE grp = ? AND joined <= ? \
             ORDER BY joined, member LIMIT ?",
        )?
        .query_map(params![group, (now - pace.wait).as_millis(), MOST_MEMBERS as i64], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    // As every engine does: the same news has the same id on each.
    members.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let sealing = Sealing { database, group, receivers, now };
    let mut told = Told::default();
    let mut said = Vec::new();
    let count = members.len();
    for (member, letter, body) in members {
        let body = body.unwrap_or_default();
        let letter = sealing.tell(&member, &letter, body, &mut told)?;
        said.push(format!("{letter}{member}"));
    }
    // With nobody to tell there is nothing to keep: nobody would ever take it away.
    if count > 0 && !receivers.is_empty() {
        let id = notification_id(&key, &said.join("\n"));
        let notification = format!(
            r#"{{"group":{body},"sealed_at":"{now}","offline":[{}],"online":[{}],"blind":[{}]{}}}"#,
            told.offline.join(","),
            told.online.join(","),
            told.blind.join(","),
            told_json(&told.told_to, receivers)
        );
        database.prepare_cached("INSERT OR REPLACE INTO notifications VALUES(?, ?, ?)")?.execute(params![
            id,
            notification,
            receivers.len() as i64
        ])?;
        for receiver in receivers {
            database
                .prepare_cached("INSERT INTO lanes(receiver, grp, notification) VALUES(?, ?, ?)")?
                .execute(params![receiver, key, id])?;
            database.prepare_cached("INSERT OR IGNORE INTO queue VALUES(?, ?, ?, ?)")?.execute(params![
                receiver,
                key,
                partition,
                now.as_millis()
            ])?;
        }
        database
            .prepare_cached("UPDATE groups SET sealed = ? WHERE id = ?")?
            .execute([times.sealing(pace, now).as_millis(), group])?;
    }
    rest_if_nobody_waits(database, group)?;
    times.put_off(database, group, count > 0, pace, now)?;
    Ok(count)
}

/// When a group was sealed last, and when it is due.
struct Times {
    last: Option<Timestamp>,
    due: Option<Timestamp>,
}

impl Times {
    fn of(database: &Connection, group: i64) -> rusqlite::Result<Times> {
        let moment = |ms: Option<i64>| ms.map(Timestamp::from_millis);
        let select = "SELECT sealed, due FROM groups WHERE id = ?";
        let mut select = database.prepare_cached(select)?;
        select.query_row([group], |row| Ok(Times { last: moment(row.get(0)?), due: moment(row.get(1)?) }))
    }

    /// The last sealing, if this one tells the rest of what was waiting then.
    fn follows(&self, pace: Pace) -> Option<Timestamp> {
        self.last.filter(|last| self.due.is_some_and(|due| due > *last && due < *last + pace.interval))
    }

    /// From when on the interval counts.
    fn sealing(&self, pace: Pace, now: Timestamp) -> Timestamp {
        self.follows(pace).unwrap_or(now)
    }

    /// Members that could not be told now, as their own wait is not over, follow when the wait of all of them is
    /// over, once; whoever joins after that waits for the interval to pass.
    fn put_off(
        &self,
        database: &Connection,
        group: i64,
        told_any: bool,
        pace: Pace,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let select = "SELECT min(joined), max(joined) FROM members WHERE grp = ? AND joined IS NOT NULL";
        let (first, newest): (Option<i64>, Option<i64>) =
            database.prepare_cached(select)?.query_row([group], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(first), Some(newest)) = (first, newest) else { return Ok(()) };
        let [first, newest] = [first, newest].map(|ms| Timestamp::from_millis(ms) + pace.wait);
        if first <= now {
            return Ok(());
        }
        let next = match self.follows(pace) {
            Some(last) => first.max(last + pace.interval),
            None if told_any => newest,
            None => first,
        };
        database
            .prepare_cached("UPDATE groups SET due = ? WHERE id = ?")?
            .execute([next.as_millis(), group])?;
        Ok(())
    }
}

/// A group that is being sealed.
struct Sealing<'a> {
    database: &'a Connection,
    group: i64,
    receivers: &'a [String],
    now: Timestamp,
}

impl Sealing<'_> {
    /// Puts what a member has to say where it belongs, and notes that it was told, and to whom. Answers as what
    /// it counts in the id.
    fn tell(&self, member: &str, letter: &str, body: String, told: &mut Told) -> rusqlite::Result<char> {
        let is_blind = member.starts_with("blind ");
        let told_to = letter.strip_prefix('b');
        match told_to {
            _ if is_blind => told.blind.push(body),
            Some(told_to) => {
                told.online.push(body);
                told.told_to.push(told_to.to_owned());
            }
            None => told.offline.push(body),
        }
        let is_end = is_blind || told_to.is_some();
        let next = if is_end { "x".to_owned() } else { format!("t:{}", self.receivers.join(",")) };
        let over = is_end.then(|| self.now.as_millis());
        self.database
            .prepare_cached(
                "UPDATE members SET letter = ?, joined = NULL, over = ?, body = NULL WHERE grp = ? AND member = ?",
            )?
            .execute(params![next, over, self.group, member])?;
        Ok(if is_end { 'b' } else { 'o' })
    }
}

/// For each return of a notification who was told its silence, as [`Notification`] has it; nothing if all
/// receivers were told all.
///
/// [`Notification`]: crate::store::notification::Notification
fn told_json(told_to: &[String], receivers: &[String]) -> String {
    let told: Vec<Option<&str>> = told_to.iter().map(|names| names.strip_prefix(':')).collect();
    let has_all = |told: &Option<&str>| {
        told.is_none_or(|told| receivers.iter().all(|name| told.split(',').any(|told| told == name)))
    };
    if told.iter().all(has_all) { String::new() } else { format!(r#","told":{}"#, serde_json::json!(told)) }
}

/// Forgets a bounded number of members that have been over for long, and groups without any.
pub(super) fn tidy(database: &Connection, now: Timestamp) -> DatabaseResult<()> {
    let before = (now - OVER).as_millis();
    let over: Vec<(i64, String)> = database
        .prepare_cached("SELECT grp, member FROM members WHERE over <= ? ORDER BY over LIMIT ?")?
        .query_map([before, FORGOTTEN_AT_ONCE], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (group, member) in over {
        database
            .prepare_cached("DELETE FROM members WHERE grp = ? AND member = ?")?
            .execute(params![group, member])?;
        database
            .prepare_cached(
                "DELETE FROM groups WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM members WHERE grp = ?1)",
            )?
            .execute([group])?;
    }
    Ok(())
}
