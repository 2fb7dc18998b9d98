//! Claims about the e-mail channel.

use std::time::Duration;

use rollcall::alerting::{Failure, Links, Zone, open, probe, send_test};
use rollcall::presence::Interval;
use rollcall::simulate::mail_sink::{Mail, MailSink, MailSinkOptions, Reply};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use super::*;

const MAX_WAIT: Duration = Duration::from_secs(120);
const ENDLESS: usize = 256 << 20;
const OPS: &str = "ops@example.org";
const BOSS: &str = "boss@example.org";

async fn sink() -> MailSink {
    MailSink::start(MailSinkOptions::default()).await.unwrap()
}

/// The mails for deliveries, sent one after the other.
async fn mails(deliveries: &[Delivery]) -> Vec<Mail> {
    let sink = sink().await;
    let channel = open(&mail_to(sink.url(), &[OPS])).unwrap();
    for delivery in deliveries {
        channel.send(delivery, now()).await.unwrap();
    }
    sink.mails()
}

async fn subject(offline: Vec<OfflineRecord>, online: Vec<OfflineRecord>, group: &[(&str, &str)]) -> String {
    let mut delivery = delivery(offline, online);
    delivery.group.labels = labels(group);
    mails(&[delivery]).await[0].header("Subject").unwrap()
}

/// The outcome of an attempt with this reply of the server.
async fn answered(answer: Reply) -> Result<(), Failure> {
    let sink = sink().await;
    sink.reply_with([answer]);
    let channel = open(&mail_to(sink.url(), &[OPS])).unwrap();
    channel.send(&delivery(vec![silent("detector:a", now())], vec![]), now()).await.map(|_| ())
}

#[tokio::test]
async fn the_state_comes_first_in_the_subject() {
    let many = |n: usize| (0..n).map(|i| silent(&format!("detector:{i}"), now())).collect::<Vec<_>>();
    let returned = |n| many(n).iter().map(|record| back(record, now())).collect::<Vec<_>>();
    let north = [("kind", "detector"), ("site", "north")];
    assert_eq!(subject(many(3), vec![], &north).await, "OFFLINE: 3 detectors (site=north)");
    assert_eq!(subject(vec![], returned(1), &[]).await, "BACK: detector 0");
    assert_eq!(subject(many(5), returned(2), &north).await, "OFFLINE 5, BACK 2: detector (site=north)");
    let mixed = vec![silent("detector:a", now()), silent("gate:a", now())];
    assert_eq!(subject(mixed, vec![], &[]).await, "OFFLINE: 2 units");
}

#[tokio::test]
async fn the_greeting_is_the_name_of_the_machine_or_an_address() {
    for (hello, greeting) in [("node-1.example.org", "node-1.example.org"), ("", "[127.0.0.1]")] {
        let sink = sink().await;
        let mut receiver = mail_to(sink.url(), &[OPS]);
        let ChannelConfig::Email(config) = &mut receiver.channel else { unreachable!("it is a mail") };
        config.hello = hello.to_owned();
        let channel = open(&receiver).unwrap();
        channel.send(&delivery(vec![silent("detector:a", now())], vec![]), now()).await.unwrap();
        assert_eq!(sink.mails()[0].hello, greeting);
    }
}

#[tokio::test]
async fn units_that_are_no_longer_watched_are_not_reported_as_back() {
    let closed = |id: &str| OfflineRecord {
        closed_by: Some(Closing::KindRemoved),
        ..back(&silent(&format!("detector:{id}"), now()), now())
    };
    assert_eq!(subject(vec![], vec![closed("a")], &[]).await, "NO LONGER WATCHED: detector a");
    let returned = back(&silent("detector:b", now()), now());
    let mixed = vec![closed("a"), returned];
    assert_eq!(subject(vec![], mixed.clone(), &[]).await, "BACK 1, NO LONGER WATCHED 1: detector");
    let mail = &mails(&[delivery(vec![], mixed)]).await[0];
    for line in
        ["Back (1)\r\n- detector b", "No longer watched (1)\r\n- detector a", "its kind is not configured"]
    {
        assert!(mail.data.contains(line), "{line}: {}", mail.data);
    }
}

#[tokio::test]
async fn a_mail_says_that_no_person_wrote_it_and_has_text_and_html() {
    let mail = &mails(&[delivery(vec![silent("detector:unit-7", now())], vec![])]).await[0];
    assert_eq!(mail.header("Auto-Submitted").unwrap(), "auto-generated");
    assert_eq!(mail.header("From").unwrap(), "Rollcall <rollcall@example.org>");
    assert_eq!(
        (mail.from.as_str(), mail.to.as_slice()),
        ("rollcall@example.org", [OPS.to_owned()].as_slice())
    );
    assert!(mail.header("Content-Type").unwrap().starts_with("multipart/alternative"));
    assert!(mail.data.contains("Content-Type: text/plain") && mail.data.contains("Content-Type: text/html"));
    assert!(mail.data.contains("- detector unit-7\r\n") && mail.data.contains("<b>detector unit-7</b>"));
}

#[tokio::test]
async fn a_mail_names_its_list_links_to_rollcall_and_fits_light_dark_and_narrow_screens() {
    let sink = sink().await;
    let links = Links::new(&"https://rollcall.example.org".parse().unwrap());
    let message =
        MessageConfig { links, zone: Zone::parse("Europe/Berlin").unwrap(), ..MessageConfig::default() };
    let channel = open(&ReceiverConfig { message, ..mail_to(sink.url(), &[OPS]) }).unwrap();
    let winter = Timestamp::from_millis(1_768_471_200_000);
    channel.send(&delivery(vec![silent("detector:a", winter)], vec![]), now()).await.unwrap();
    let mail = &sink.mails()[0];
    assert_eq!(mail.header("List-Id").unwrap(), "<mail.rollcall.example.org>");
    let data = mail.data.replace("=\r\n", "").replace("=3D", "=");
    let (text, html) = data.split_once("text/html").unwrap();
    for said in ["detector a", "2026-01-15 11:00:00 CET", "https://rollcall.example.org/units/detector/a"] {
        assert!(text.contains(said) && html.contains(said), "{said}: {data}");
    }
    for needed in ["width=device-width", "color-scheme:light dark", "prefers-color-scheme:dark"] {
        assert!(html.contains(needed), "{needed}: {html}");
    }
}

#[tokio::test]
async fn blindness_has_a_mail_of_its_own() {
    let blind = Interval { from: now(), to: now() + Duration::from_secs(725) };
    let delivery = Delivery { blind: vec![blind], ..delivery(vec![], vec![]) };
    let mail = &mails(std::slice::from_ref(&delivery)).await[0];
    assert!(mail.header("Subject").unwrap().starts_with("HEARING AGAIN: nothing could be heard for 12m"));
    let lasting = Interval { to: Timestamp::NEVER, ..blind };
    let mail = &mails(&[Delivery { blind: vec![lasting], ..delivery }]).await[0];
    let subject = mail.header("Subject").unwrap();
    assert!(subject.starts_with("BLIND: nothing has been heard since 20"), "{subject}");
}

#[tokio::test]
async fn a_return_refers_to_the_mail_of_its_silence() {
    let record = silent("detector:a", now());
    let silence = delivery(vec![record.clone()], vec![]);
    let returned = Delivery { id: "later.hook".to_owned(), ..delivery(vec![], vec![back(&record, now())]) };
    let mails = mails(&[silence, returned]).await;
    let first = mails[0].header("Message-ID").unwrap();
    assert_eq!(mails[0].header("References"), None);
    assert_eq!(mails[1].header("In-Reply-To").as_ref(), Some(&first));
    assert_eq!(mails[1].header("References").as_ref(), Some(&first));
    assert_ne!(mails[1].header("Message-ID").unwrap(), first);
}

#[tokio::test]
async fn a_silence_that_is_mailed_twice_is_not_dropped_as_a_duplicate() {
    let record = silent("detector:a", now());
    let again = OfflineRecord { detected_at: record.detected_at + HOUR, ..record.clone() };
    let mails = mails(&[delivery(vec![record], vec![]), delivery(vec![again], vec![])]).await;
    assert_ne!(mails[0].header("Message-ID"), mails[1].header("Message-ID"));
}

#[tokio::test]
async fn a_reminder_is_a_mail_of_its_own_and_refers_to_the_mail_of_its_silence() {
    let silence = delivery(vec![silent("detector:a", now())], vec![]);
    let reminder = Delivery { id: "later.hook".to_owned(), reminder: true, ..silence.clone() };
    let mails = mails(&[silence, reminder]).await;
    let first = mails[0].header("Message-ID").unwrap();
    assert_ne!(
        mails[1].header("Message-ID").unwrap(),
        first,
        "a mail program shows one of two with the same id"
    );
    assert_eq!(mails[1].header("In-Reply-To").as_ref(), Some(&first));
    assert!(
        mails[1].header("Subject").unwrap().starts_with("REMINDER: "),
        "{:?}",
        mails[1].header("Subject")
    );
}

#[tokio::test]
async fn mails_about_several_records_share_the_thread_of_their_group() {
    let both = || vec![silent("detector:a", now()), silent("detector:b", now())];
    let later = Delivery { id: "later.hook".to_owned(), ..delivery(both(), vec![]) };
    let mails = mails(&[delivery(both(), vec![]), later]).await;
    assert_eq!(mails[0].header("References"), mails[1].header("References"));
    assert!(mails[0].header("References").is_some());
    assert_ne!(mails[0].header("Message-ID"), mails[1].header("Message-ID"));
}

#[tokio::test]
async fn every_mail_of_a_group_that_units_share_is_in_one_thread() {
    let [a, b] = ["detector:a", "detector:b"].map(|unit| silent(unit, now()));
    let shared =
        |id: &str, offline: Vec<OfflineRecord>, online: Vec<OfflineRecord>, reminder: bool| Delivery {
            id: format!("{id}.hook"),
            situation: GroupContext { lasting: Some(2), ..GroupContext::default() },
            reminder,
            ..delivery(offline, online)
        };
    let sent = [
        shared("first", vec![a.clone()], vec![], false),
        shared("both", vec![a.clone(), b.clone()], vec![], false),
        shared("one", vec![], vec![back(&a, now())], false),
        shared("again", vec![b.clone()], vec![], true),
        shared("last", vec![], vec![back(&b, now())], false),
    ];
    let mails = mails(&sent).await;
    let begins = mails.iter().map(|mail| {
        mail.header("References").expect("it is in a thread").split(' ').next().unwrap().to_owned()
    });
    let begins: std::collections::BTreeSet<String> = begins.collect();
    assert_eq!(begins.len(), 1, "{begins:?}");
}

#[tokio::test]
async fn every_attempt_sends_the_same_bytes() {
    let first = delivery(vec![silent("detector:a", now())], vec![]);
    let second = Delivery { attempt: 2, ..first.clone() };
    let mails = mails(&[first, second]).await;
    assert_eq!(mails[0], mails[1]);
}

#[tokio::test]
async fn hostile_names_add_no_header_and_no_markup() {
    // Such an id cannot be parsed, but another version may have stored it in the engine.
    let mut record = silent("detector:<img src=x onerror=alert(1)>", now());
    let evil = "north\r\nBcc: victim@example.org\r\n\r\n<script>";
    record.labels = labels(&[("site", evil)]);
    let mut delivery = delivery(vec![record], vec![]);
    delivery.group.labels = labels(&[("site", evil)]);
    let mail = &mails(&[delivery]).await[0];
    assert_eq!(mail.header("Bcc"), None);
    assert!(!mail.data.lines().any(|line| line.starts_with("Bcc:")), "{}", mail.data);
    let html = mail.data.split("text/html").nth(1).unwrap().replace("=\r\n", "");
    assert!(html.contains("&lt;img src=") && html.contains("&lt;script&gt;"), "{html}");
    assert!(!html.contains("<img") && !html.contains("<script"), "{html}");
    assert!(mail.header("Subject").unwrap().contains("Bcc: victim"));
    assert_eq!(mail.to, [OPS]);
}

#[tokio::test]
async fn names_that_are_not_what_they_seem_are_written_out() {
    // Both units have ids that a device may have.
    let mut record = silent("detector:pump\u{202e}7 (site=south)", now());
    record.labels = labels(&[("site", "north, kind=gate\u{200b}")]);
    let mut delivery = delivery(vec![record], vec![]);
    delivery.group.labels = labels(&[("site", "north, kind=gate")]);
    let mail = &mails(&[delivery]).await[0];
    let subject = mail.header("Subject").unwrap();
    assert_eq!(subject, "OFFLINE: detector \"pump\\u{202e}7 (site=south)\" (site=\"north, kind=gate\")");
    let data = mail.data.replace("=\r\n", "").replace("=3D", "=");
    let line = r#"- detector "pump\u{202e}7 (site=south)" (site="north, kind=gate\u{200b}")"#;
    assert!(data.contains(line), "{data}");
    assert!(data.contains(&line[2..].replace('"', "&quot;")), "{data}");
}

#[tokio::test]
async fn a_storm_is_one_mail_with_counts_the_first_units_and_a_table_of_all() {
    let record = |number: usize| OfflineRecord {
        labels: labels(&[("site", if number < 9800 { "north" } else { "south" })]),
        ..silent(&format!("detector:{number:04}"), now())
    };
    let storm = delivery((0..10_000).map(record).collect(), vec![]);
    let since = Some(storm.sealed_at - HOUR);
    let situation = GroupContext { lasting: Some(9997), since, ..GroupContext::default() };
    let update = delivery(vec![record(1), record(2), record(3)], vec![back(&record(4), now()); 2]);
    let [mail, update] =
        &mails(&[storm, Delivery { situation, id: "later.hook".to_owned(), ..update }]).await[..]
    else {
        panic!("two mails")
    };
    assert_eq!(mail.header("Subject").unwrap(), "OFFLINE: 10 000 detectors");
    let data = mail.data.replace("=\r\n", "").replace("=3D", "=");
    let (text, rest) = data.split_once("text/html").unwrap();
    let (html, table) = rest.split_once("text/csv").unwrap();
    assert_eq!([text.matches("- detector ").count(), html.matches("<li><b>detector ").count()], [50, 50]);
    for said in ["and 9 950 more", "site=north 9 800, site=south 200", "units.csv lists all of them."] {
        assert!(text.contains(said) && html.contains(said), "{said}: {text}");
    }
    assert!(data.contains("filename=\"units.csv\""));
    assert_eq!(table.matches("\r\noffline,detector,").count(), 10_000);
    assert_eq!(update.header("Subject").unwrap(), "OFFLINE 3, BACK 2: detector, 9 997 still offline");
    assert!(
        update.data.contains("\r\n3 more, 2 back since ")
            && update.data.contains("; 9 997 still offline\r\n")
    );
    assert!(!update.data.contains("csv"));
}

#[tokio::test]
async fn names_of_any_script_arrive_whole() {
    let record = silent("detector:ünit 7 – 北", now());
    let mail = &mails(&[delivery(vec![record], vec![])]).await[0];
    assert!(mail.data.is_ascii());
    assert!(mail.header("Subject").unwrap().contains("=?utf-8?b?"));
}

#[tokio::test]
async fn a_refusal_of_any_kind_is_retried_because_an_operator_may_fix_its_reason() {
    use Reply::{Mail, Recipient, Sender};
    for answer in [Sender(451), Recipient(OPS.to_owned(), 451), Mail(452), Reply::Close] {
        let result = answered(answer.clone()).await;
        assert!(matches!(result, Err(Failure::Temporary { .. })), "{answer:?}: {result:?}");
    }
    for answer in [Sender(550), Sender(530), Mail(550), Mail(554)] {
        let result = answered(answer.clone()).await;
        let names_it = matches!(&result, Err(Failure::Temporary { why, .. }) if why.contains("55") || why.contains("530"));
        assert!(names_it, "{answer:?}: {result:?}");
    }
}

#[tokio::test]
async fn a_recipient_refused_for_good_does_not_keep_the_mail_from_the_others() {
    let sink = sink().await;
    sink.reply_with([Reply::Recipient(OPS.to_owned(), 550), Reply::Recipient(OPS.to_owned(), 550)]);
    let both = open(&mail_to(sink.url(), &[OPS, BOSS])).unwrap();
    let silence = delivery(vec![silent("detector:a", now())], vec![]);
    both.send(&silence, now()).await.unwrap();
    assert_eq!(sink.mails()[0].to, [BOSS]);
    let unreached =
        both.unreached().expect("the error names the recipients that were not reached").to_string();
    assert!(
        unreached.starts_with(OPS) && unreached.contains("550") && !unreached.contains(BOSS),
        "{unreached}"
    );
    let alone = open(&mail_to(sink.url(), &[OPS])).unwrap();
    assert!(matches!(alone.send(&silence, now()).await, Err(Failure::Temporary { .. })));
}

#[tokio::test]
async fn a_recipient_refused_for_the_moment_gets_the_mail_later_by_itself_and_the_others_at_once() {
    let sink = sink().await;
    let both = open(&mail_to(sink.url(), &[OPS, BOSS])).unwrap();
    let mail = |number: u32| Delivery {
        id: format!("{number}.hook"),
        ..delivery(vec![silent("detector:a", now())], vec![])
    };
    let put_off = || sink.reply_with([Reply::Recipient(OPS.to_owned(), 450)]);
    put_off();
    let rest = both.send(&mail(1), now()).await.unwrap().rest;
    let unreached =
        both.unreached().expect("the error names the recipients that were not reached").to_string();
    assert!(unreached.starts_with(OPS) && unreached.contains("450") && !unreached.contains(BOSS));
    put_off();
    let later = both.send(&mail(2), now()).await.unwrap().rest;
    assert_eq!([rest.len(), later.len()], [1, 1]);
    let mut waits = Vec::new();
    for attempt in 1..=9 {
        put_off();
        let again = both.send(&Delivery { attempt, ..rest[0].clone() }, now()).await;
        let Err(Failure::Partial { wait, is_asked: false, .. }) = again else { panic!("{again:?}") };
        waits.push(wait.as_secs());
    }
    assert_eq!(waits, [15, 30, 60, 120, 240, 300, 300, 300, 300]);
    both.send(&rest[0], now()).await.unwrap();
    assert_eq!(both.unreached(), None);
    both.send(&later[0], now()).await.unwrap();
    assert_eq!(both.send(&mail(3), now()).await.unwrap().rest, []);
    let mails = sink.mails();
    let to: Vec<String> = mails.iter().map(|mail| mail.to.join(" ")).collect();
    assert_eq!(to, [BOSS, BOSS, OPS, OPS, &format!("{OPS} {BOSS}")]);
    assert_eq!(mails[0].header("Message-ID"), mails[2].header("Message-ID"));
    // A mail that the server refuses for every recipient is tried again as a whole.
    sink.reply_with([Reply::Recipient(OPS.to_owned(), 450)]);
    let alone = open(&mail_to(sink.url(), &[OPS])).unwrap();
    assert!(matches!(alone.send(&mail(4), now()).await, Err(Failure::Temporary { .. })));
    // A test postpones nothing.
    put_off();
    assert!(send_test(&mail_to(sink.url(), &[OPS, BOSS]), now()).await.is_err());
}

#[tokio::test]
async fn a_probe_and_a_test_say_which_recipient_is_refused() {
    let sink = sink().await;
    let receiver = mail_to(sink.url(), &[OPS, BOSS]);
    for is_probe in [true, false] {
        sink.reply_with([Reply::Recipient(BOSS.to_owned(), 550)]);
        let said = if is_probe { probe(&receiver).await } else { send_test(&receiver, now()).await };
        let why = said.unwrap_err().to_string();
        assert!(why.contains(BOSS) && why.contains("550") && !why.contains(OPS), "{why}");
    }
    assert_eq!(sink.mails().len(), 1, "a probe is not a mail");
    probe(&receiver).await.unwrap();
    send_test(&receiver, now()).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_server_is_temporary() {
    let port = rollcall::simulate::servers::free_port().unwrap();
    for scheme in ["smtp", "smtps", "smtp+starttls"] {
        let receiver = mail_to(format!("{scheme}://127.0.0.1:{port}"), &[OPS]);
        for result in [probe(&receiver).await, send_test(&receiver, now()).await] {
            assert!(matches!(result, Err(Failure::Temporary { .. })), "{scheme}: {result:?}");
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_gets_no_mail_that_was_to_be_encrypted() {
    let sink = sink().await;
    let receiver = mail_to(format!("smtp+starttls://127.0.0.1:{}", sink.port()), &[OPS]);
    let result = send_test(&receiver, now()).await;
    assert!(matches!(&result, Err(Failure::Temporary { why, .. }) if why.contains("STARTTLS")), "{result:?}");
    assert!(sink.mails().is_empty());
}

#[tokio::test]
async fn an_interrupted_conversation_is_not_continued() {
    let sink = sink().await;
    sink.reply_with([Reply::Hang]);
    let channel = open(&mail_to(sink.url(), &[OPS])).unwrap();
    let silence = delivery(vec![silent("detector:a", now())], vec![]);
    tokio::select! {
        biased;
        result = channel.send(&silence, now()) => panic!("a server that hangs answered {result:?}"),
        taken = sink.wait_for(1, MAX_WAIT) => drop(taken.unwrap()),
    }
    channel.send(&silence, now()).await.unwrap();
    channel.send(&silence, now()).await.unwrap();
    assert_eq!(sink.mails().len(), 3);
    assert_eq!(sink.connections(), 2, "the first is closed, the second used twice");
}

/// Otherwise such a mail would block its group until it is given up, days later.
#[tokio::test]
async fn a_mail_that_is_too_large_for_the_server_goes_out_without_its_table() {
    let sink = MailSink::start(MailSinkOptions::default()).await.unwrap();
    sink.reply_with([Reply::Mail(552)]);
    let channel = open(&mail_to(format!("smtp://127.0.0.1:{}", sink.port()), &[OPS])).unwrap();
    let storm = delivery((0..60).map(|at| silent(&format!("detector:{at}"), now())).collect(), vec![]);
    let failure = channel.send(&storm, now()).await.unwrap_err();
    assert!(matches!(&failure, Failure::Partial { why, .. } if why.contains("no table")), "{failure}");
    channel.send(&storm, now()).await.unwrap();
    let mail = sink.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
    assert!(!mail.data.contains("units.csv") && mail.data.contains("and 10 more"), "{}", mail.data);
}

#[tokio::test]
async fn a_wrong_password_is_retried_and_shows_in_a_probe() {
    let login = "AHVzZXJAc2l0ZQBwYSBzcw==".to_owned(); // user@site, pa ss
    let sink =
        MailSink::start(MailSinkOptions { login: Some(login), ..MailSinkOptions::default() }).await.unwrap();
    let with = |password: &str| {
        let smtp = format!("smtp://user%40site@127.0.0.1:{}", sink.port());
        let mut receiver = mail_to(smtp, &[OPS]);
        if let ChannelConfig::Email(email) = &mut receiver.channel {
            email.password = Some(password.to_owned());
        }
        receiver
    };
    probe(&with("pa ss")).await.unwrap();
    send_test(&with("pa ss"), now()).await.unwrap();
    let wrong = probe(&with("s3cret")).await.unwrap_err();
    assert!(
        matches!(&wrong, Failure::Temporary { why, .. } if why.contains("it refuses the login: 535") && !why.contains("s3cret"))
    );
    assert!(matches!(send_test(&with("s3cret"), now()).await, Err(Failure::Temporary { .. })));
    assert_eq!(sink.mails().len(), 1);
    assert!(sink.mails()[0].header("Subject").unwrap().starts_with("TEST: "));
}

#[tokio::test]
async fn a_mail_server_whose_answer_never_ends_is_left_and_its_answer_is_not_kept() {
    // The server fails before the mail is handed over, and while it is.
    for good in ["", "220 sink\r\n250 sink\r\n"] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("smtp://{}", listener.local_addr().unwrap());
        let hostile = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(good.as_bytes()).await.unwrap();
            let mut taken = 0;
            // The client sends more than all buffers between the two ends hold.
            while taken < ENDLESS && stream.write_all(&[b'2'; 8192]).await.is_ok() {
                taken += 8192;
            }
            taken
        });
        let channel = open(&mail_to(url, &[OPS])).unwrap();
        let delivery = delivery(vec![silent("detector:a", now())], vec![]);
        let sent = tokio::time::timeout(MAX_WAIT, channel.send(&delivery, now())).await.expect("it is left");
        assert!(
            matches!(&sent, Err(Failure::Temporary { why, .. }) if why.contains("longer than")),
            "{sent:?}"
        );
        assert!(hostile.await.unwrap() < ENDLESS, "it was read to its end");
    }
}

/// A server with texts in Latin-1, as some answer in their language.
#[tokio::test]
async fn an_answer_that_is_no_utf_8_counts_by_its_code() {
    for (last, is_sent) in
        [(&b"250 f\xfcr Zustellung angenommen\r\n"[..], true), (b"554 abgelehnt f\xfcr immer\r\n", false)]
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("smtp://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.into_split();
            writer.write_all(b"220 gr\xfc\xdfe\r\n").await.unwrap();
            let mut lines = tokio::io::BufReader::new(reader).lines();
            let mut is_mail = false;
            while let Ok(Some(line)) = lines.next_line().await {
                let answer: &[u8] = match line.as_str() {
                    "." if is_mail => last,
                    _ if is_mail => continue,
                    "DATA" => b"354 weiter\r\n",
                    _ => b"250 ok\r\n",
                };
                is_mail = line == "DATA" || is_mail && line != ".";
                writer.write_all(answer).await.unwrap();
            }
        });
        let channel = open(&mail_to(url, &[OPS])).unwrap();
        let delivery = delivery(vec![silent("detector:a", now())], vec![]);
        let sent = tokio::time::timeout(MAX_WAIT, channel.send(&delivery, now())).await.expect("it answers");
        match sent {
            Ok(_) => assert!(is_sent),
            Err(why) => assert!(!is_sent && why.to_string().contains("abgelehnt f?r immer"), "{why}"),
        }
    }
}

#[tokio::test]
async fn failures_of_a_mail_server_are_said_in_words() {
    let sink = sink().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let web = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    .await;
            }
        });
        port
    };
    let why = async |smtp: String| {
        let channel = open(&mail_to(smtp, &[OPS])).unwrap();
        channel
            .send(&delivery(vec![silent("detector:a", now())], vec![]), now())
            .await
            .unwrap_err()
            .to_string()
    };
    for (smtp, said) in [
        (format!("smtp://127.0.0.1:{free}"), "connection refused: nothing listens there"),
        ("smtp://no-such-host.invalid:25".to_owned(), "its name "),
        (format!("smtps://127.0.0.1:{}", sink.port()), "it does not speak TLS on this port; check smtp"),
        (format!("smtp://127.0.0.1:{web}"), "its answer is not SMTP"),
    ] {
        let text = why(smtp.clone()).await;
        assert!(text.contains(said) && !text.contains("os error"), "{smtp}: {text}");
    }
    for (reply, said) in [
        (Reply::Close, "the other side closed the connection"),
        (Reply::Sender(451), "it takes no mail now: 451"),
        (Reply::Sender(553), "it refuses: 553"),
    ] {
        sink.reply_with([reply]);
        let text = why(format!("smtp://127.0.0.1:{}", sink.port())).await;
        assert!(text.contains(said), "{said}: {text}");
    }
}
