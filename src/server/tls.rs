//! TLS, by rustls.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};

use super::socket::Patient;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::store_error::StoreError;

pub(super) type TlsStream = StreamOwned<ClientConnection, Patient<TcpStream>>;

/// The settings of all connections to servers that show certificates of these authorities.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// `authorities`: as PEM. `None`: those of the system.
    pub(crate) fn new(authorities: Option<&[u8]>) -> Result<Self> {
        let roots = match authorities {
            Some(pem) => named(pem)?,
            None => systems()?,
        };
        // The program may have chosen one for the whole process.
        let provider = CryptoProvider::get_default()
            .map_or_else(|| Arc::new(ring::default_provider()), Arc::clone);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| Error::unsupported("the TLS provider of this process has no TLS version"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A session that is resumed is not asked for its certificate again.
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// The handshake takes place with the first command.
    pub(super) fn over(
        &self,
        socket: Patient<TcpStream>,
        host: &str,
    ) -> Result<TlsStream, StoreError> {
        let unusable = || {
            let why = "the host of the URL cannot be the name in a certificate";
            StoreError::not_sent(ErrorKind::InvalidInput, why).permanent()
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| unusable())?;
        let session = ClientConnection::new(Arc::clone(&self.0), name).map_err(|_| unusable())?;
        Ok(StreamOwned::new(session, socket))
    }
}

fn named(pem: &[u8]) -> Result<RootCertStore> {
    let refused =
        || Error::invalid("one of the root certificates cannot be used: they have to be PEM");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|_| refused())?).map_err(|_| refused())?;
    }
    if roots.is_empty() { Err(refused()) } else { Ok(roots) }
}

/// A file that cannot be read is no reason to refuse the others.
fn systems() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid(
            "this system names no certificate authority: give one by root_certificates",
        ));
    }
    Ok(roots)
}

/// Why a connection failed, if that is in what the two peers want of each other: waiting does not
/// help.
pub(super) fn incurable(error: &io::Error) -> Option<StoreError> {
    use rustls::Error as Problem;
    let problem = error.get_ref()?.downcast_ref::<Problem>()?;
    let message = match problem {
        Problem::InvalidCertificate(problem) => invalid(problem),
        Problem::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server wants a certificate of its client, and this client has none"
        }
        Problem::AlertReceived(
            AlertDescription::CloseNotify
            | AlertDescription::InternalError
            | AlertDescription::UserCanceled,
        ) => return None,
        Problem::AlertReceived(_) => "the server refuses to speak TLS with this client",
        Problem::PeerIncompatible(_) => "the server has no TLS version or cipher of this client's",
        Problem::InvalidMessage(_) => "what answers at this address does not speak TLS",
        _ => return None,
    };
    let incurable = StoreError::not_sent(ErrorKind::Unavailable, message).permanent();
    Some(match problem {
        Problem::InvalidCertificate(CertificateError::Other(problem)) => {
            incurable.because(problem.to_string())
        }
        // Its words quote the host.
        Problem::InvalidCertificate(_) => incurable,
        problem => incurable.because(problem.to_string()),
    })
}

/// Why nothing could be sent: the peer may have said it before it hung up.
pub(super) fn last_words(stream: &mut TlsStream, failed: io::Error) -> io::Error {
    let is_the_systems = failed.get_ref().is_none();
    while is_the_systems && stream.conn.read_tls(&mut stream.sock).is_ok_and(|read| read > 0) {
        if let Err(said) = stream.conn.process_new_packets() {
            return io::Error::other(said);
        }
    }
    failed
}

fn invalid(problem: &CertificateError) -> &'static str {
    use CertificateError as Problem;
    match problem {
        Problem::Expired | Problem::ExpiredContext { .. } => "the server's certificate has expired",
        Problem::NotValidForName | Problem::NotValidForNameContext { .. } => {
            "the server's certificate is for another host"
        }
        Problem::UnknownIssuer | Problem::BadSignature => {
            "the server's certificate is from an authority that is not trusted"
        }
        _ => "the server's certificate is not valid",
    }
}
