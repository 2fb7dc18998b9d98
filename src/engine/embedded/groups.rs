//! Groups: transitions that are told together wait here until their group is sealed.
//!
//! A member is known by a letter:
//! - `o` waits to be told that it is offline
//! - `t` was told to be offline
//! - `b` was told to be offline and waits to be told that it is back
//! - `x` over: told both, or taken back before either was told
//!
//! Everything that does not lead from one of these to the next changes nothing, so a transition may
//! join again at any time, and a return may come before its silence.

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Fault;
use crate::clock::Timestamp;
use crate::engine::notification::Member;

/// What joins: group key, group (JSON), member.
pub(super) type Joining = (String, String, Member);

/// What becomes of a member of that letter to which this happens; `None`: nothing.
fn next_letter(letter: Option<char>, form: &str) -> Option<char> {
    let is_end = matches!(form, "online" | "removed");
    match letter {
        None if !is_end => Some('o'),
        Some('t') if form == "online" => Some('b'),
        None | Some('o' | 't') if is_end => Some('x'),
        _ => None,
    }
}

/// Lets one transition join its group, to be told at `due` if the group waits for nothing yet.
pub(super) fn join(
    database: &Connection,
    (key, body, member): &Joining,
    now: Timestamp,
    wait_ms: i64,
    interval_ms: i64,
) -> Result<(), Fault> {
    database
        .prepare_cached("INSERT INTO groups(key, body) VALUES(?, ?) ON CONFLICT(key) DO NOTHING")?
        .execute([key, body])?;
    let (group, sealed): (i64, Option<i64>) = database
        .prepare_cached("SELECT id, sealed FROM groups WHERE key = ?")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let detected = member.detected_at.as_millis();
    let mut name = member.id.clone();
    let mut letter = letter_of(database, group, &name)?;
    // A silence that is over and was detected once more is news: it is a member of its own.
    if letter.is_some_and(|(letter, before)| letter == 'x' && before < detected) {
        name = format!("{name} {detected}");
        letter = letter_of(database, group, &name)?;
    }
    let Some(next) = next_letter(letter.map(|(letter, _)| letter), member.form) else { return Ok(()) };
    let now = now.as_millis();
    let is_over = next == 'x';
    let (joined, over) = if is_over { (None, Some(now)) } else { (Some(now), None) };
    let told = (!is_over).then_some(&member.json);
    database
        .prepare_cached("INSERT OR REPLACE INTO members VALUES(?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![group, name, next.to_string(), detected, joined, over, told])?;
    let due = match member.form {
        "blind" => now,
        _ => (now + wait_ms).max(sealed.map_or(i64::MIN, |sealed| sealed.saturating_add(interval_ms))),
    };
    let update = if is_over {
        "UPDATE groups SET due = NULL WHERE id = ?1 AND NOT EXISTS \
         (SELECT 1 FROM members WHERE grp = ?1 AND joined IS NOT NULL)"
    } else {
        "UPDATE groups SET due = coalesce(due, ?2) WHERE id = ?1"
    };
    let mut update = database.prepare_cached(update)?;
    if is_over { update.execute([group])? } else { update.execute([group, due])? };
    Ok(())
}

fn letter_of(database: &Connection, group: i64, member: &str) -> rusqlite::Result<Option<(char, i64)>> {
    database
        .prepare_cached("SELECT letter, detected FROM members WHERE grp = ? AND member = ?")?
        .query_row(params![group, member], |row| {
            let letter: String = row.get(0)?;
            Ok((letter.chars().next().unwrap_or('x'), row.get(1)?))
        })
        .optional()
}
