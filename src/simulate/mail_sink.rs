//! A mail server for the demo and the tests: it accepts and stores mails over SMTP, or refuses them on request.
//!
//! The server implements the part of SMTP (RFC 5321) that a client needs to send a mail, and `AUTH PLAIN` if it has a
//! login. It listens on the loopback address only; dropping the value ends it and every connection.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The most stored mails; the oldest are dropped first.
const MAX_KEPT: usize = 10_000;
/// The longest line of a conversation.
const MAX_LINE: u64 = 64 << 10;
/// The largest mail, in bytes.
const MAX_MAIL: usize = 16 << 20;

#[derive(Default)]
pub struct MailSinkOptions {
    /// The port; 0 means any free port.
    pub port: u16,
    /// The login that a client has to send, if any: the base64 of `\0user\0password`.
    pub login: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Accept,
    /// Closes the connection before the greeting.
    Close,
    /// Answers `MAIL FROM` with this code.
    Sender(u16),
    /// Answers `RCPT TO` for this recipient with this code, and accepts other recipients.
    Recipient(String, u16),
    /// Answers the whole mail with this code.
    Mail(u16),
    /// Accepts the mail, and sends no reply.
    Hang,
}

/// A mail that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mail {
    /// The name in the client's greeting.
    pub hello: String,
    /// The sender of the envelope.
    pub from: String,
    /// The recipients of the envelope.
    pub to: Vec<String>,
    /// Headers and body, unchanged.
    pub data: String,
}

impl Mail {
    /// The value of a header on one line; `None` if the mail lacks it.
    pub fn header(&self, name: &str) -> Option<String> {
        let lines = self.data.split("\r\n").take_while(|line| !line.is_empty());
        let mut value: Option<String> = None;
        for line in lines {
            match (&mut value, line.split_once(':')) {
                (Some(value), _) if line.starts_with([' ', '\t']) => *value += line,
                (Some(_), _) => break,
                (None, Some((this, first))) if this.eq_ignore_ascii_case(name) => {
                    value = Some(first.to_owned());
                }
                (None, _) => {}
            }
        }
        value.map(|value| value.trim().to_owned())
    }
}

/// A running mail server, which ends with this value.
pub struct MailSink {
    address: SocketAddr,
    shared: Arc<SharedMails>,
}

struct SharedMails {
    login: Option<String>,
    replies: Mutex<VecDeque<Reply>>,
    mails: Mutex<VecDeque<Mail>>,
    count: watch::Sender<usize>,
    connections: watch::Sender<usize>,
    stop: CancellationToken,
}

impl MailSink {
    /// Starts the server. It accepts every mail until [`MailSink::reply_with`].
    pub async fn start(options: MailSinkOptions) -> io::Result<MailSink> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(SharedMails {
            login: options.login,
            replies: Mutex::default(),
            mails: Mutex::default(),
            count: watch::Sender::new(0),
            connections: watch::Sender::new(0),
            stop: CancellationToken::new(),
        });
        tokio::spawn(serve(listener, shared.clone()));
        Ok(MailSink { address, shared })
    }

    /// The address for a receiver's `smtp`.
    pub fn url(&self) -> String {
        format!("smtp://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Uses these replies for the next mails, one each, and then accepts mails again.
    pub fn reply_with(&self, replies: impl IntoIterator<Item = Reply>) {
        *self.shared.replies.lock() = replies.into_iter().collect();
    }

    /// The mails that were accepted, in order.
    pub fn mails(&self) -> Vec<Mail> {
        self.shared.mails.lock().iter().cloned().collect()
    }

    /// How many connections were opened.
    pub fn connections(&self) -> usize {
        *self.shared.connections.borrow()
    }

    /// Waits until this many mails were accepted in all, at most for `patience`.
    pub async fn wait_for(&self, count: usize, patience: Duration) -> io::Result<Vec<Mail>> {
        let mut counted = self.shared.count.subscribe();
        let enough = counted.wait_for(|&so_far| so_far >= count);
        match tokio::time::timeout(patience, enough).await {
            Ok(_) => Ok(self.mails()),
            Err(_) => {
                let so_far = self.shared.mails.lock().len();
                Err(io::Error::other(format!("{so_far} of {count} mails came within {patience:?}")))
            }
        }
    }
}

impl Drop for MailSink {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

async fn serve(listener: TcpListener, sink: Arc<SharedMails>) {
    let stop = sink.stop.clone();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // The process probably has too many open sockets; some of them will close.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        sink.connections.send_modify(|count| *count += 1);
        let sink = sink.clone();
        tokio::spawn(async move {
            let stop = sink.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                // A client that aborts ends only its own conversation.
                _ = SmtpSession::new(stream, sink).hold() => {}
            }
        });
    }
}

/// A conversation with one client.
struct SmtpSession {
    lines: BufStream<TcpStream>,
    sink: Arc<SharedMails>,
    logged_in: bool,
    /// The name in the client's greeting.
    hello: String,
    /// The mail in progress, and the reply to it.
    mail: Mail,
    reply: Reply,
}

impl SmtpSession {
    fn new(stream: TcpStream, sink: Arc<SharedMails>) -> SmtpSession {
        let mail = Mail::default();
        let logged_in = sink.login.is_none();
        SmtpSession {
            lines: BufStream::new(stream),
            sink,
            logged_in,
            hello: String::new(),
            mail,
            reply: Reply::Accept,
        }
    }

    async fn hold(mut self) -> io::Result<()> {
        if self.sink.next_reply_if(&Reply::Close) {
            return Ok(());
        }
        self.say("220 sink ready").await?;
        while let Some(line) = self.line().await? {
            let (command, rest) = line.split_once([' ', ':']).unwrap_or((&line, ""));
            let command = command.to_ascii_uppercase();
            if command == "EHLO" {
                self.hello = rest.trim().to_owned();
            }
            match command.as_str() {
                "EHLO" if self.sink.login.is_some() => self.say("250-sink\r\n250 AUTH PLAIN").await?,
                "EHLO" | "HELO" | "NOOP" | "RSET" => self.say("250 fine").await?,
                "AUTH" => self.log_in(rest).await?,
                "MAIL" if !self.logged_in => self.say("530 log in first").await?,
                "MAIL" => self.sender(address(rest)).await?,
                "RCPT" => self.recipient(address(rest)).await?,
                "DATA" => self.take_mail().await?,
                "QUIT" => return self.say("221 bye").await,
                _ => self.say("502 what?").await?,
            }
        }
        Ok(())
    }

    async fn log_in(&mut self, how: &str) -> io::Result<()> {
        self.logged_in = self.sink.login.as_deref() == how.rsplit(' ').next();
        self.say(if self.logged_in { "235 welcome" } else { "535 wrong password" }).await
    }

    async fn sender(&mut self, from: String) -> io::Result<()> {
        self.reply = self.sink.next_reply();
        self.mail = Mail { hello: self.hello.clone(), from, ..Mail::default() };
        match self.reply {
            Reply::Sender(code) => self.refuse(code).await,
            _ => self.say("250 fine").await,
        }
    }

    async fn recipient(&mut self, to: String) -> io::Result<()> {
        match &self.reply {
            Reply::Recipient(recipient, code) if *recipient == to => self.refuse(*code).await,
            _ => {
                self.mail.to.push(to);
                self.say("250 fine").await
            }
        }
    }

    async fn take_mail(&mut self) -> io::Result<()> {
        self.say("354 go on").await?;
        self.mail.data = self.data().await?;
        if let Reply::Mail(code) = self.reply {
            return self.refuse(code).await;
        }
        self.sink.keep(self.mail.clone());
        if self.reply == Reply::Hang {
            self.sink.stop.cancelled().await;
        }
        self.say("250 taken").await
    }

    /// A line without its line end; `None` when the client has disconnected.
    async fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        (&mut self.lines).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        if !line.ends_with(b"\n") {
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()))
    }

    /// Reads the lines up to a single dot, without dot-stuffing.
    async fn data(&mut self) -> io::Result<String> {
        let mut data = String::new();
        while let Some(line) = self.line().await? {
            if line == "." {
                return Ok(data);
            }
            if data.len() > MAX_MAIL {
                return Err(io::Error::other("the mail is too large"));
            }
            data += line.strip_prefix('.').unwrap_or(&line);
            data += "\r\n";
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    async fn refuse(&mut self, code: u16) -> io::Result<()> {
        self.say(&format!("{code} the sink is set to refuse")).await
    }

    async fn say(&mut self, text: &str) -> io::Result<()> {
        self.lines.write_all(text.as_bytes()).await?;
        self.lines.write_all(b"\r\n").await?;
        self.lines.flush().await
    }
}

/// The text between the angle brackets.
fn address(text: &str) -> String {
    let inner = text.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    inner.map_or_else(String::new, |(address, _)| address.to_owned())
}

impl SharedMails {
    fn next_reply(&self) -> Reply {
        self.replies.lock().pop_front().unwrap_or(Reply::Accept)
    }

    fn next_reply_if(&self, this: &Reply) -> bool {
        self.replies.lock().pop_front_if(|reply| reply == this).is_some()
    }

    fn keep(&self, mail: Mail) {
        let mut mails = self.mails.lock();
        if mails.len() >= MAX_KEPT {
            mails.pop_front();
        }
        mails.push_back(mail);
        drop(mails);
        self.count.send_modify(|count| *count += 1);
    }
}
