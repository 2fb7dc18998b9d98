//! Mails that some of their recipients have, because the server refuses the others for the moment.
//!
//! A server that greylists takes a recipient after some minutes, and one with a full mailbox when the mailbox is emptied. The
//! mail is tried again for them, at waits that grow, until [`PATIENCE`] is over. The notifications after it in its group wait
//! meanwhile, so a recipient for which that time was in vain is waited for again only after the server took it once: one
//! full mailbox keeps no alert from the others.
//!
//! The state is that of this instance: another one, and this one after a restart, sends the mail to every recipient again, under
//! the same `Message-ID`.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use lettre::Address;

use super::Addressed;
use crate::clock::Timestamp;

/// How long a mail waits for recipients that are refused for the moment. Servers that greylist want up to a quarter of an
/// hour.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// The waits between two attempts: as long as they have gone on, within these.
const SHORTEST_WAIT: Duration = Duration::from_secs(15);
const LONGEST_WAIT: Duration = Duration::from_secs(5 * 60);
/// How many mails may wait. Beyond, recipients that are refused for the moment are not waited for.
const MOST: usize = 1000;
/// After that time a mail is forgotten: its delivery was ended elsewhere.
const KEPT: Duration = Duration::from_secs(86_400);

#[derive(Default)]
pub(super) struct PartialMails {
    /// By the id of the delivery.
    mails: HashMap<String, PartialMail>,
    /// Recipients for which a mail waited in vain, and that no mail has reached since.
    given_up: HashSet<Address>,
}

struct PartialMail {
    begun: Timestamp,
    /// The recipients that have it.
    reached: Vec<Address>,
}

impl PartialMails {
    /// The recipients that do not have the mail of this delivery yet.
    pub fn without<'a>(&self, delivery: &str, all: impl Iterator<Item = &'a Address>) -> Vec<&'a Address> {
        let reached = self.mails.get(delivery).map_or(&[][..], |mail| &mail.reached);
        all.filter(|recipient| !reached.contains(recipient)).collect()
    }

    /// Notes who has the mail of a delivery now. Answers the wait until the next attempt for the others; `None`: the delivery
    /// is over.
    pub fn wait_for_others(
        &mut self,
        delivery: &str,
        addressed: &Addressed<'_>,
        now: Timestamp,
    ) -> Option<Duration> {
        for recipient in &addressed.taken {
            self.given_up.remove(*recipient);
        }
        self.mails.retain(|_, mail| now.since(mail.begun) < KEPT);
        let waits_for = |recipient: &Address| !self.given_up.contains(recipient);
        let is_wanted = addressed.put_off.iter().any(|(recipient, _)| waits_for(recipient));
        let has_room = self.mails.len() < MOST || self.mails.contains_key(delivery);
        if is_wanted && has_room {
            let new = || PartialMail { begun: now, reached: Vec::new() };
            let mail = self.mails.entry(delivery.to_owned()).or_insert_with(new);
            mail.reached.extend(addressed.taken.iter().map(|recipient| (*recipient).clone()));
            let waited = now.since(mail.begun);
            if waited < PATIENCE {
                return Some(waited.clamp(SHORTEST_WAIT, LONGEST_WAIT).min(PATIENCE - waited));
            }
            self.given_up.extend(addressed.put_off.iter().map(|(recipient, _)| (*recipient).clone()));
        }
        self.mails.remove(delivery);
        None
    }
}
