//! The e-mail channel: one SMTP conversation per mail, over a connection that is kept for the next.
//!
//! A connection is used again only after a conversation that ended well. A connection that failed, or was
//! dropped half-way because it took too long, is closed: its next answer would be unpredictable.
//!
//! # Refusals
//! The mail is tried again, whether the server answers 4xx or 5xx: an operator corrects a
//! wrong password, a missing right to relay or a wrong address, and no alert is lost by it. If the server refuses
//! some recipients permanently, the others get the mail, and the log names the refused recipients.
//!
//! If the server refuses some recipients for the moment (greylisting, a full mailbox), the others get the mail, and
//! each deferred recipient gets a delivery of its own, see `put_off.rs`. Later mails to it wait behind that delivery.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use async_trait::async_trait;
use lettre::Address;
use lettre::message::header::ContentType;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp::Error;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use parking_lot::Mutex;

use super::mail_content::MailContent;
use super::{Channel, Failure, ReceiverAnswer, cause_of};
use crate::alerting::message::{MessageConfig, ReceiverMessage, test_delivery};
use crate::alerting::put_off;
use crate::alerting::text::plain;
use crate::clock::{Timestamp, monotonic};
use crate::store::{Delivery, StoredDeliveries};
use crate::telemetry::Unreached;
use crate::trust::TlsFiles;

mod limited_stream;
mod refused_recipients;
mod server;

use refused_recipients::{RefusedRecipients, list};
use server::MailServer;

/// The answer to a mail that is larger than the server takes, or than a mailbox has room for (RFC 5321, 4.2.3).
const TOO_LARGE: &str = "552";

/// A connection that was idle for longer is not used again.
const MAX_IDLE: Duration = Duration::from_secs(20);
/// How long an idle connection may take to answer that it is open.
const NOOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The waits between two attempts at a recipient that is refused for the moment.
const FIRST_WAIT: Duration = Duration::from_secs(15);
const MAX_WAIT: Duration = Duration::from_secs(5 * 60);

#[derive(Clone, Default)]
pub struct EmailConfig {
    /// `smtp://`, `smtps://`, `smtp+starttls://user@host:port`.
    pub smtp: String,
    /// The password for the user in the address.
    pub password: Option<String>,
    pub from: String,
    pub to: Vec<String>,
    /// The name of this machine, for the greeting; empty if it has none.
    pub hello: String,
    pub tls: TlsFiles,
}

pub struct Email {
    receiver: String,
    server: MailServer,
    from: Mailbox,
    to: Vec<Mailbox>,
    hello: ClientId,
    message: MessageConfig,
    idle: Mutex<Vec<(AsyncSmtpConnection, Instant)>>,
    /// Whether the server refused a mail with a table as too large: then mails have none, until the next start.
    is_small: AtomicBool,
    refused: Mutex<RefusedRecipients>,
    /// The deliveries that wait; without them no mail comes behind another.
    records: OnceLock<StoredDeliveries>,
}

/// The answers of a server to recipients.
#[derive(Default)]
struct Addressed<'a> {
    taken: Vec<&'a Address>,
    /// The recipients that it refuses permanently.
    refused: Vec<RefusedRecipient<'a>>,
    /// The recipients that it refuses for the moment.
    put_off: Vec<RefusedRecipient<'a>>,
}

/// A recipient, and why the server refuses it.
type RefusedRecipient<'a> = (&'a Address, Failure);

impl Email {
    /// A channel. Errors name the option and show no secret.
    pub fn new(receiver: &str, config: &EmailConfig, message: &MessageConfig) -> Result<Email, String> {
        let EmailConfig { from, to, .. } = config;
        if to.is_empty() {
            return Err("to is empty; write at least one address".to_owned());
        }
        let to: Vec<Mailbox> = to.iter().map(|address| mailbox("to", address)).collect::<Result<_, _>>()?;
        let addresses: HashSet<&Address> = to.iter().map(|mailbox| &mailbox.email).collect();
        if addresses.len() < to.len() {
            return Err("to names an address twice; write each once".to_owned());
        }
        Ok(Email {
            receiver: receiver.to_owned(),
            server: MailServer::new(config)?,
            from: mailbox("from", from)?,
            to,
            hello: hello(&config.hello),
            message: message.clone(),
            idle: Mutex::default(),
            is_small: AtomicBool::new(false),
            refused: Mutex::default(),
            records: OnceLock::new(),
        })
    }

    fn content(&self, message: &ReceiverMessage<'_>) -> MailContent {
        MailContent::new(message, self.domain(), &self.message, !self.is_small.load(Ordering::Relaxed))
    }

    async fn post(&self, message: &ReceiverMessage<'_>) -> Result<ReceiverAnswer, Failure> {
        let delivery = message.delivery;
        let content = self.content(message);
        let has_table = content.table.is_some();
        let mail = self.written(content).map_err(|error| {
            Failure::temporary(format!("the mail cannot be written: {}", cause_of(&error)))
        })?;
        let only = put_off::recipient(delivery);
        let is_patient = only.is_none() && !delivery.is_at_most_once() && !message.is_test;
        let waits = if is_patient { self.waits(delivery).await? } else { vec![false; self.to.len()] };
        let all = self.to.iter().map(|mailbox| &mailbox.email).zip(waits);
        let all = all.filter(|(one, _)| only.is_none_or(|only| one.to_string() == only));
        let (behind, recipients): (Vec<_>, Vec<_>) = all.partition(|(_, waits)| *waits);
        let (behind, _): (Vec<&Address>, Vec<bool>) = behind.into_iter().unzip();
        let (recipients, _): (Vec<&Address>, Vec<bool>) = recipients.into_iter().unzip();
        if let (Some(only), true) = (only, recipients.is_empty()) {
            let why = format!("{only} is not in `to` any more");
            return Err(Failure::Partial { why, wait: MAX_WAIT, is_asked: false });
        }
        if recipients.is_empty() {
            let rest = put_off::for_recipients(delivery, &behind);
            return Ok(ReceiverAnswer { text: "the server defers every recipient".to_owned(), rest });
        }
        let mut connection = self.connection().await?;
        let Addressed { taken, refused, put_off } = self.address(&mut connection, &recipients).await?;
        if taken.is_empty() {
            return self.refused_by_all(delivery, refused, put_off);
        }
        let text = self.hand_over(&mut connection, &mail.formatted(), has_table).await?;
        self.idle.lock().push((connection, monotonic()));
        self.note_refused(&taken, &refused, &put_off);
        let later = put_off.iter().map(|(recipient, _)| *recipient).filter(|_| is_patient).chain(behind);
        let rest = put_off::for_recipients(delivery, &later.collect::<Vec<_>>());
        Ok(ReceiverAnswer { text, rest })
    }

    /// For each recipient, whether earlier mails wait for it. Blindness waits for no mail, and for no engine.
    async fn waits(&self, delivery: &Delivery) -> Result<Vec<bool>, Failure> {
        let is_alone = self.to.len() == 1 || !delivery.blind.is_empty();
        let Some(records) = self.records.get().filter(|_| !is_alone) else {
            return Ok(vec![false; self.to.len()]);
        };
        let lanes: Vec<String> =
            self.to.iter().map(|mailbox| put_off::lane(mailbox.email.as_ref())).collect();
        records.have_waiting(&self.receiver, &lanes).await.map_err(|error| {
            let why = format!("the waiting mails of refused recipients cannot be read: {error}");
            Failure::Partial { why, wait: FIRST_WAIT, is_asked: false }
        })
    }

    /// The outcome of a mail that no recipient gets. A mail that was put off for its only recipient is not a failure of
    /// the server, which takes the mails of others.
    fn refused_by_all(
        &self,
        delivery: &Delivery,
        refused: Vec<RefusedRecipient<'_>>,
        put_off: Vec<RefusedRecipient<'_>>,
    ) -> Result<ReceiverAnswer, Failure> {
        let is_for_one = put_off::recipient(delivery).is_some();
        match (refused.last(), put_off.last()) {
            (Some((_, why)), _) | (None, Some((_, why))) if is_for_one => {
                let doublings = delivery.attempt.saturating_sub(1).min(16);
                let wait = FIRST_WAIT.saturating_mul(1 << doublings).min(MAX_WAIT);
                self.note_refused(&[], &refused, &put_off);
                Err(Failure::Partial { why: why.to_string(), wait, is_asked: false })
            }
            (Some((_, why)), _) | (None, Some((_, why))) => Err(why.clone()),
            (None, None) => Ok(ReceiverAnswer::default()),
        }
    }

    fn written(&self, content: MailContent) -> Result<lettre::Message, lettre::error::Error> {
        let header = |name, value: String| HeaderValue::new(HeaderName::new_from_ascii_str(name), value);
        // RFC 2919: mail programs sort by it.
        let list = format!("<{}.rollcall.{}>", self.receiver, self.domain());
        let mut message = lettre::Message::builder()
            .from(self.from.clone())
            .subject(content.subject)
            .message_id(Some(content.message_id))
            .date(UNIX_EPOCH + content.date.since(Timestamp::ZERO))
            .raw_header(header("Auto-Submitted", "auto-generated".to_owned()))
            .raw_header(header("List-Id", list));
        for recipient in &self.to {
            message = message.to(recipient.clone());
        }
        if let Some(before) = content.references.last() {
            message = message.in_reply_to(before.clone()).references(content.references.join(" "));
        }
        let both = MultiPart::alternative()
            .boundary(&content.boundary)
            .singlepart(SinglePart::plain(content.text))
            .singlepart(SinglePart::html(content.html));
        let Some((name, table)) = content.table else { return message.multipart(both) };
        let csv = ContentType::parse("text/csv; charset=utf-8").expect("it is a type");
        message.multipart(
            MultiPart::mixed()
                .boundary(format!("{}-mixed", content.boundary))
                .multipart(both)
                .singlepart(Attachment::new(name.to_owned()).body(table, csv)),
        )
    }

    /// A connection that is ready for a mail.
    async fn connection(&self) -> Result<AsyncSmtpConnection, Failure> {
        while let Some(mut connection) = self.take_idle() {
            if let Ok(true) = tokio::time::timeout(NOOP_TIMEOUT, connection.test_connected()).await {
                return Ok(connection);
            }
        }
        self.server.connect(&self.hello).await
    }

    async fn hand_over(
        &self,
        connection: &mut AsyncSmtpConnection,
        mail: &[u8],
        has_table: bool,
    ) -> Result<String, Failure> {
        let fail = |error: Error| {
            let is_too_large = error.status().is_some_and(|code| code.to_string() == TOO_LARGE);
            let failure = self.server.failure(&error);
            if !(is_too_large && has_table) {
                return failure;
            }
            self.is_small.store(true, Ordering::Relaxed);
            let why = format!("{failure}; the next mail has no table of all units");
            Failure::Partial { why, wait: Duration::ZERO, is_asked: false }
        };
        connection.command(Data).await.map_err(fail)?;
        let answer = connection.message(mail).await.map_err(fail)?;
        let answer = format!("{} {}", answer.code(), answer.first_line().unwrap_or_default());
        Ok(plain(&self.server.secrets.hide(&answer)))
    }

    /// Logs the recipients that do not get a mail that others get, unless the previous mail had the same ones.
    fn note_refused(
        &self,
        taken: &[&Address],
        refused: &[RefusedRecipient<'_>],
        put_off: &[RefusedRecipient<'_>],
    ) {
        let mut known = self.refused.lock();
        if !known.note(taken, refused, put_off) {
            return;
        }
        let receiver = &self.receiver;
        match known.unreached() {
            Some(Unreached::Recipients(refused)) => tracing::warn!(
                receiver,
                "the mail server refused some recipients, the others got the mail: {refused}"
            ),
            Some(Unreached::Deferred(deferred)) => tracing::warn!(
                receiver,
                "the mail server defers some recipients, the others got the mail: {deferred}"
            ),
            Some(Unreached::Servers(_)) | None => {}
        }
    }

    /// Sends `MAIL FROM` and `RCPT TO`.
    async fn address<'a>(
        &self,
        connection: &mut AsyncSmtpConnection,
        recipients: &[&'a Address],
    ) -> Result<Addressed<'a>, Failure> {
        let fail = |error: Error| self.server.failure(&error);
        connection.command(Mail::new(Some(self.from.email.clone()), vec![])).await.map_err(fail)?;
        let mut addressed = Addressed::default();
        for &recipient in recipients {
            match connection.command(Rcpt::new(recipient.clone(), vec![])).await {
                Ok(_) => addressed.taken.push(recipient),
                Err(error) if error.is_permanent() => addressed.refused.push((recipient, fail(error))),
                Err(error) if error.is_transient() => addressed.put_off.push((recipient, fail(error))),
                Err(error) => return Err(fail(error)),
            }
        }
        Ok(addressed)
    }

    fn take_idle(&self) -> Option<AsyncSmtpConnection> {
        let mut idle = self.idle.lock();
        idle.retain(|(_, since)| monotonic().duration_since(*since) < MAX_IDLE);
        idle.pop().map(|(connection, _)| connection)
    }

    fn domain(&self) -> &str {
        self.from.email.domain()
    }
}

#[async_trait]
impl Channel for Email {
    async fn send(&self, delivery: &Delivery, _now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        self.post(&ReceiverMessage::new(delivery)).await
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        self.post(&ReceiverMessage::test(&test_delivery(&self.receiver, now))).await.map(|_| ())
    }

    /// Connects, greets, logs in and names sender and recipients, and sends no mail.
    async fn probe(&self) -> Result<(), Failure> {
        let mut connection = self.connection().await?;
        let recipients: Vec<&Address> = self.to.iter().map(|mailbox| &mailbox.email).collect();
        let addressed = self.address(&mut connection, &recipients).await;
        connection.abort().await;
        let Addressed { mut refused, mut put_off, .. } = addressed?;
        refused.append(&mut put_off);
        match refused.as_slice() {
            [] => Ok(()),
            some => Err(Failure::temporary(format!(
                "some recipients are refused: {}",
                list(some.iter().map(|(recipient, why)| (recipient, why)))
            ))),
        }
    }

    fn render(&self, delivery: &Delivery) -> Result<String, String> {
        let content = self.content(&ReceiverMessage::new(delivery));
        Ok(format!("Subject: {}\n\n{}", content.subject, content.text))
    }

    fn keep_order(&self, records: StoredDeliveries) {
        let _ = self.records.set(records);
    }

    fn unreached(&self) -> Option<Unreached> {
        self.refused.lock().unreached()
    }
}

/// A machine without a name greets by an address (RFC 5321, 4.1.4).
fn hello(host: &str) -> ClientId {
    match host {
        "" => ClientId::Ipv4(Ipv4Addr::LOCALHOST),
        host => ClientId::Domain(host.to_owned()),
    }
}

fn mailbox(option: &str, text: &str) -> Result<Mailbox, String> {
    let hint = "write name@example.org or Name <name@example.org>";
    let mailbox: Mailbox =
        text.parse().map_err(|error| format!("{option} {text:?} is not an address ({error}); {hint}"))?;
    // Only some servers take such addresses, and the error would come with the first alert.
    if !mailbox.email.to_string().is_ascii() {
        return Err(format!("{option} {text:?} has other characters than ASCII in its address; {hint}"));
    }
    Ok(mailbox)
}

#[cfg(test)]
mod tests;
