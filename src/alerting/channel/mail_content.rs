//! The content of a mail: subject, text, HTML and the ids by which mail programs make threads.
//!
//! A pure function of the delivery and the receiver's options. A storm is one digest: each section lists fifty records
//! and the number of the rest; a table of all of them is attached. Text and HTML say the same. The HTML has the colours
//! of the reader's device, light or dark, and one column, so that it fits a telephone; it loads nothing.
//!
//! # Threads
//! A mail about one record has an id made from that record, so that the mail about the return can
//! refer to the mail about the silence without stored state. A mail about several records
//! has the id of its delivery. In a group that units share every mail refers to the id of the group first, so that one
//! thread has silences that were mailed together and returns that were not.
//!
//! The time of detection is part of the id of a record's mails: one silence may be notified twice (its
//! timeout was extended, which closes the record, and then ran out again), and mail servers drop
//! a second mail with the id of the first.

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use crate::alerting::message::{
    MAX_LISTED, MessageConfig, ReceiverMessage, Section, lead, line_of_rest, number, report_of, sections,
    table,
};
use crate::alerting::put_off::id_of_all;
use crate::alerting::text::{html, plain};
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;
use crate::reports;
use crate::store::Delivery;

/// The most mails of single records that a mail about several refers to.
const MAX_REFERENCES: usize = 20;
/// The colours of both schemes; all other colours are the device's.
const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:16px/1.5 sans-serif;max-width:40em;margin:0 auto;padding:1em;overflow-wrap:anywhere}
h1{font-size:1.25em}h2{font-size:1em;margin-bottom:0}
ul{padding-left:1.2em}li{margin:.4em 0}
.f{color:#595959}a{color:#0b57d0}
table{border-collapse:collapse}td,th{text-align:left;padding:.2em .6em;border-bottom:1px solid #999}
@media(prefers-color-scheme:dark){.f{color:#b0b0b0}a{color:#8ab4f8}}";

/// No field has line breaks, except between the lines of `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailContent {
    pub subject: String,
    pub text: String,
    /// The text as HTML.
    pub html: String,
    /// In angle brackets.
    pub message_id: String,
    /// The mails before it in its thread, oldest first.
    pub references: Vec<String>,
    /// When its group was sealed.
    pub date: Timestamp,
    /// Separates text and HTML; a device cannot guess it before the mail is sent.
    pub boundary: String,
    /// The records of a storm, or the rows of a report, as a table: its name, and CSV.
    pub table: Option<(&'static str, String)>,
}

/// The names of attached tables.
const TABLE_NAME: &str = "units.csv";
const REPORT_NAME: &str = "report.csv";

impl MailContent {
    /// The mail for a message; the sender's address is at `domain`. `may_attach`: attach a table to the mail of a
    /// storm.
    pub fn new(
        message: &ReceiverMessage<'_>,
        domain: &str,
        config: &MessageConfig,
        may_attach: bool,
    ) -> MailContent {
        let delivery = message.delivery;
        let ids = MessageIds { receiver: &delivery.receiver, domain };
        let (message_id, references) = match message.is_test {
            true => (ids.message_id("test", &delivery.id), Vec::new()),
            false => ids.of(delivery),
        };
        let subject = message.title(config);
        let listed = delivery.offline.len().max(delivery.online.len());
        let table = (may_attach && listed > MAX_LISTED && !message.is_test).then(|| table(delivery));
        let attached = table.as_ref().map(|table| table.rows);
        let (text, html) = render(&subject, message, config, attached);
        let of_report = || Some((REPORT_NAME, reports::csv(&report_of(delivery).filter(|_| may_attach)?)));
        let table = table.map(|table| (TABLE_NAME, table.text)).or_else(of_report);
        let boundary = hash(&["boundary", &delivery.id]);
        MailContent { subject, text, html, message_id, references, date: delivery.sealed_at, boundary, table }
    }
}

/// The text and the HTML. `attached`: how many records the attached table has.
fn render(
    subject: &str,
    message: &ReceiverMessage<'_>,
    config: &MessageConfig,
    attached: Option<usize>,
) -> (String, String) {
    let delivery = message.delivery;
    let title = html(subject);
    let mut text = format!("{subject}\n");
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}\n</style></head>\n<body>\n<h1>{title}</h1>\n"
    );
    let sections = if message.is_test { Vec::new() } else { sections(delivery, &config.zone, &config.links) };
    if message.is_test {
        let said = message.text(config);
        text += &format!("\n{said}\n");
        page += &format!("<p>{}</p>\n", html(&said));
    }
    let lead = if message.is_test { Vec::new() } else { lead(delivery, &config.zone) };
    if !lead.is_empty() {
        text += &format!("\n{}\n", lead.join("\n"));
        let lines: Vec<String> = lead.iter().map(|line| html(line)).collect();
        page += &format!("<p>{}</p>\n", lines.join("<br>\n"));
    }
    match report_of(delivery).filter(|_| !message.is_test) {
        Some(report) => {
            text += &format!("\n{}\n", reports::text(&report));
            page += &reports::body(&report).into_string();
        }
        None => sections.iter().for_each(|section| add(section, &mut text, &mut page)),
    }
    if let Some(rows) = attached {
        let all = delivery.offline.len() + delivery.online.len();
        let said = match rows == all {
            true => format!("{TABLE_NAME} lists all of them."),
            false => format!("{TABLE_NAME} lists the first {} of them.", number(rows as u64)),
        };
        text += &format!("\n{said}\n");
        page += &format!("<p>{said}</p>\n");
    }
    if let Some(url) = message.url(config) {
        text += &format!("\n{url}\n");
        page += &format!("<p><a href=\"{0}\">{0}</a></p>\n", html(&url));
    }
    let footer = format!("Notification {} for receiver {}.", plain(&delivery.id), delivery.receiver);
    text += &format!("\n{footer}\n");
    page += &format!("<p class=\"f\">{}</p>\n</body></html>", html(&footer));
    (text, page)
}

fn add(section: &Section, text: &mut String, page: &mut String) {
    *text += &format!("\n{}\n", section.title);
    *page += &format!("<h2>{}</h2>\n<ul>\n", html(&section.title));
    for item in &section.items {
        *text += &format!("- {}\n  {}\n", item.name, item.what);
        let name = format!("<b>{}</b>", html(&item.name));
        let name = match &item.link {
            Some(link) => format!("<a href=\"{}\">{name}</a>", html(link)),
            None => name,
        };
        *page += &format!("<li>{name}<br>\n{}</li>\n", html(&item.what));
    }
    if section.more > 0 {
        let rest = line_of_rest(section.more);
        *text += &format!("{rest}\n");
        *page += &format!("<li>{rest}</li>\n");
    }
    *page += "</ul>\n";
}

/// The message ids of one receiver's mails. They are hashes, because the names in them are long and
/// may hold anything.
struct MessageIds<'a> {
    receiver: &'a str,
    domain: &'a str,
}

impl MessageIds<'_> {
    /// The id of a delivery's mail and the mails that it follows.
    fn of(&self, delivery: &Delivery) -> (String, Vec<String>) {
        let own = || self.message_id("delivery", &id_of_all(delivery));
        let silences = |records: &[OfflineRecord]| -> Vec<String> {
            records.iter().take(MAX_REFERENCES).map(|record| self.record(record, "offline")).collect()
        };
        let (offline, online) = (delivery.offline.as_slice(), delivery.online.as_slice());
        let (id, silences, is_single) = match (offline, online) {
            // A mail program shows two mails of one id once.
            _ if delivery.reminder => (own(), silences(offline), true),
            ([record], []) => (self.record(record, "offline"), Vec::new(), true),
            ([], [record]) => (self.record(record, "online"), silences(online), true),
            _ => (own(), silences(online), false),
        };
        let is_shared = !is_single || delivery.situation.lasting.is_some();
        let group = is_shared.then(|| self.message_id("group", delivery.group_key()));
        (id, group.into_iter().chain(silences).collect())
    }

    fn record(&self, record: &OfflineRecord, transition: &str) -> String {
        self.message_id(transition, &format!("{} {}", record.detected_at.as_millis(), record.id))
    }

    fn message_id(&self, of: &str, name: &str) -> String {
        // The part before the first dot is the same for both transitions of a record.
        format!("<{}.{of}.rollcall@{}>", hash(&[self.receiver, name]), self.domain)
    }
}

fn hash(parts: &[&str]) -> String {
    let digest = digest(&SHA256, parts.join("\n").as_bytes());
    HEXLOWER.encode(&digest.as_ref()[..16])
}
