//! Why a connection failed, for an operator, with what to do.

use std::error::Error;
use std::io;
use std::time::Duration;

use rumqttc::{ConnectReturnCode, ConnectionError, DisconnectReasonCode, StateError};

use crate::intake::canary;
use crate::telemetry::ConnectionLoss;

/// Nothing arrived for that long.
pub fn silence(limit: Duration) -> String {
    format!(
        "nothing came for {} s, not even the canary; is the broker reachable, and may the client publish \
         and subscribe to {}#?",
        limit.as_secs(),
        canary::PREFIX
    )
}

/// The broker did not answer a subscription for that long.
pub fn unanswered(limit: Duration) -> String {
    format!(
        "the broker has not answered the subscription for {} s; it speaks no MQTT as it should, or is overloaded: its \
         log says more",
        limit.as_secs()
    )
}

/// No canary of a member was recorded for that long.
pub fn unproved(limit: Duration) -> String {
    format!(
        "no canary came back and was recorded for {} s; the connection is closed so that others are given its \
         share of the messages",
        limit.as_secs()
    )
}

pub fn describe(error: &ConnectionError) -> String {
    use ConnectReturnCode as Code;
    match error {
        ConnectionError::ConnectionRefused(code) => match code {
            Code::BadUserNamePassword | Code::NotAuthorized => {
                format!("it refused us ({code:?}); check mqtt.username and its password")
            }
            Code::UnsupportedProtocolVersion | Code::RefusedProtocolVersion => {
                "it does not speak MQTT 5".to_owned()
            }
            Code::RetainNotSupported => {
                "it keeps no retained messages, which members of a shared subscription need; allow them, or leave \
                 mqtt.share empty"
                    .to_owned()
            }
            code => format!("it refused us ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => match reason_code {
            DisconnectReasonCode::SessionTakenOver => {
                "another client came with our client id and took the session; what the broker gave to it is lost, and \
                 that time counts as blind; give each instance its own mqtt.client_id, and let the broker bind \
                 client ids to users as config/mosquitto/production.conf does"
                    .to_owned()
            }
            code => format!("it sent us away ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ConnectionAborted) => {
            "the broker closed the connection without a word, as it does when it ends, and as some do when another \
             client comes with our client id; the broker's log says which"
                .to_owned()
        }
        error => match tls_cause(unwrapped(error)) {
            Some(cause) => describe_tls(cause),
            None => error.to_string(),
        },
    }
}

pub fn loss(error: &ConnectionError) -> ConnectionLoss {
    match error {
        ConnectionError::ConnectionRefused(_) => ConnectionLoss::Refused,
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => match reason_code {
            DisconnectReasonCode::SessionTakenOver => ConnectionLoss::TakenOver,
            DisconnectReasonCode::NotAuthorized => ConnectionLoss::Refused,
            _ => ConnectionLoss::Broken,
        },
        _ => ConnectionLoss::Broken,
    }
}

/// The error within the wrapper that does not name its source.
fn unwrapped(error: &ConnectionError) -> &(dyn Error + 'static) {
    match error {
        ConnectionError::MqttState(StateError::Deserialization(inner)) => inner,
        error => error,
    }
}

/// The error of TLS in the chain of sources, if there is one.
fn tls_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(cause) = error.downcast_ref::<rustls::Error>() {
            return Some(cause);
        }
        // An I/O error passes over itself when it is asked for its source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

fn describe_tls(cause: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error as Tls};
    match cause {
        Tls::InvalidCertificate(Bad::UnknownIssuer) => {
            "its certificate is not from a trusted authority; name the authority in mqtt.ca_file".to_owned()
        }
        Tls::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            format!("the host in mqtt.url is not the broker's name in its certificate ({cause})")
        }
        Tls::InvalidCertificate(_) => format!("its certificate is not good ({cause})"),
        Tls::AlertReceived(
            Alert::CertificateRequired
            | Alert::HandshakeFailure
            | Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::DecryptError,
        ) => format!("it does not accept our client certificate ({cause}); check mqtt.client_cert_file"),
        Tls::InvalidMessage(_) => format!("it does not speak TLS there ({cause}); check mqtt.url"),
        cause => format!("TLS: {cause}"),
    }
}
