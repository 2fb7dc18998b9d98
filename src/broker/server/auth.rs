//! Authentication and authorization, as the library asks for them.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use mqtt5::broker::auth::{AuthProvider, AuthResult};
use mqtt5::broker::router::MessageRouter;
use mqtt5::broker::storage::client_queue::QueueHandle;
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::protocol::v5::reason_codes::ReasonCode;
use subtle::ConstantTimeEq;

use crate::broker::INSIDE;
use crate::broker::access_control::ConnectRefusal;
use crate::broker::access_rules::ClientIdentity;
use crate::broker::client_connection::ClientConnection;

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Authenticates and authorizes one device.
pub struct ClientAuth(pub Arc<ClientConnection>);

impl AuthProvider for ClientAuth {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        _from: SocketAddr,
    ) -> Answer<'a, mqtt5::error::Result<AuthResult>> {
        Box::pin(async move {
            let password = connect.password.as_deref().unwrap_or_default();
            Ok(match self.0.admit(&connect.client_id, connect.username.as_deref(), password).await {
                Ok(Some(user)) => AuthResult::success_with_user(user),
                Ok(None) => AuthResult::success(),
                Err(ConnectRefusal::Login) => AuthResult::fail(ReasonCode::BadUsernameOrPassword),
                Err(ConnectRefusal::ClientId) => AuthResult::fail(ReasonCode::ClientIdentifierNotValid),
                Err(ConnectRefusal::Full) => AuthResult::fail(ReasonCode::ServerBusy),
            })
        })
    }

    fn authorize_publish<'a>(&'a self, id: &str, name: Option<&'a str>, topic: &'a str) -> Answer<'a, bool> {
        let id = id.to_owned();
        Box::pin(async move { self.0.may_publish(ClientIdentity { id: &id, name }, topic).await })
    }

    fn authorize_subscribe<'a>(
        &'a self,
        id: &str,
        name: Option<&'a str>,
        filter: &'a str,
    ) -> Answer<'a, bool> {
        let may = self.0.may_subscribe(ClientIdentity { id, name }, filter);
        Box::pin(std::future::ready(may))
    }
}

/// Authenticates intake, and no other client.
pub struct IntakeAuth {
    pub password: String,
    pub router: Arc<MessageRouter>,
    /// The messages that wait for it; its client id is the same each time.
    pub queue: OnceLock<QueueHandle>,
}

impl IntakeAuth {
    /// How many messages wait for it.
    pub fn waiting(&self) -> usize {
        self.queue.get().map_or(0, |queue| queue.count())
    }
}

impl AuthProvider for IntakeAuth {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        from: SocketAddr,
    ) -> Answer<'a, mqtt5::error::Result<AuthResult>> {
        let password = connect.password.as_deref().unwrap_or_default();
        let is_intake = connect.username.as_deref() == Some(INSIDE)
            && from.ip().is_loopback()
            && bool::from(password.ct_eq(self.password.as_bytes()));
        let answer = if is_intake {
            self.queue.get_or_init(|| self.router.queue_handle(&connect.client_id));
            AuthResult::success_with_user(INSIDE)
        } else {
            AuthResult::fail(ReasonCode::BadUsernameOrPassword)
        };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn authorize_publish<'a>(&'a self, _: &str, _: Option<&'a str>, _: &'a str) -> Answer<'a, bool> {
        Box::pin(std::future::ready(true))
    }

    fn authorize_subscribe<'a>(&'a self, _: &str, _: Option<&'a str>, _: &'a str) -> Answer<'a, bool> {
        Box::pin(std::future::ready(true))
    }
}
