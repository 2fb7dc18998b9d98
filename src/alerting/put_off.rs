//! Deliveries to a single recipient of a receiver, because the receiver's server refuses that recipient for the
//! moment.
//!
//! The other recipients have the message, so the delivery to all is over. Each recipient that is left gets a delivery
//! of its own in a lane of the recipient: it waits, is tried again and is given up like any other, survives restarts,
//! and delays no other recipient.

use data_encoding::HEXLOWER;
use lettre::Address;
use ring::digest::{SHA256, digest};

use crate::store::{Delivery, Group, GroupContext};

/// The begin of the key of a recipient's lane. No group of records has such a key.
const LANE: &str = "put off for ";
/// Between the id of the notification and the digest of the recipient.
const MARK: char = '~';

/// The lane of a recipient.
pub(super) fn lane(recipient: &str) -> String {
    format!("{LANE}{recipient}")
}

/// The delivery of the same message to this recipient alone.
fn for_recipient(delivery: &Delivery, recipient: &str) -> Delivery {
    let hash = HEXLOWER.encode(&digest(&SHA256, recipient.as_bytes()).as_ref()[..8]);
    Delivery {
        id: format!("{}{MARK}{hash}.{}", delivery.notification(), delivery.receiver),
        group: Group { key: lane(recipient), labels: delivery.group.labels.clone() },
        of_group: Some(delivery.group_key().to_owned()),
        // Judged as for the other recipients, who got the message.
        situation: GroupContext { is_judged: true, ..delivery.situation.clone() },
        attempt: 0,
        ..delivery.clone()
    }
}

/// A delivery of the message to each recipient alone. A reminder is not put off: the next reminder is as good, and a
/// full mailbox would be flooded when it has room.
pub(super) fn for_recipients(delivery: &Delivery, recipients: &[&Address]) -> Vec<Delivery> {
    let recipients = if delivery.reminder { &[] } else { recipients };
    recipients.iter().map(|recipient| for_recipient(delivery, recipient.as_ref())).collect()
}

/// The only recipient of a delivery; `None`: it is for all.
pub(super) fn recipient(delivery: &Delivery) -> Option<&str> {
    delivery.group.key.strip_prefix(LANE)
}

/// The id of the delivery to all recipients.
pub(super) fn id_of_all(delivery: &Delivery) -> String {
    match (recipient(delivery), delivery.notification().split_once(MARK)) {
        (Some(_), Some((notification, _))) => Delivery::id_of(notification, &delivery.receiver),
        _ => delivery.id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerting::message::{Example, MessageConfig, ReceiverMessage, test_delivery};
    use crate::clock::Timestamp;

    #[test]
    fn one_recipient_gets_the_same_message_as_all_and_no_reminder() {
        let recipient: Address = "ops@example.org".parse().unwrap();
        let title = |delivery: &Delivery| ReceiverMessage::new(delivery).title(&MessageConfig::default());
        for example in Example::ALL {
            let all = example.delivery("mail");
            let [one] = &for_recipients(&all, &[&recipient])[..] else { panic!("it is put off") };
            assert_eq!(title(one), title(&all));
            assert_eq!(for_recipients(&Delivery { reminder: true, ..all }, &[&recipient]), []);
        }
    }

    #[test]
    fn a_delivery_to_one_recipient_is_known_as_one_and_knows_the_id_of_all() {
        let all = test_delivery("mail", Timestamp::ZERO);
        let one = for_recipient(&all, "ops@example.org");
        assert_eq!((recipient(&all), recipient(&one)), (None, Some("ops@example.org")));
        assert_eq!((id_of_all(&all), id_of_all(&one)), (all.id.clone(), all.id.clone()));
        assert_ne!(one.id, for_recipient(&all, "boss@example.org").id);
        assert!(one.id.ends_with(".mail"), "{}", one.id);
    }
}
