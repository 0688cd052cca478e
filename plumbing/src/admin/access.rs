//! Access to an HTTP port. On a loopback address, every user of this machine has access. On another address, a token is
//! needed.

use std::fmt;
use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use subtle::ConstantTimeEq;

use super::PROBES;

/// The fewest characters of a token: 16 random ones out of 64 are 96 bits.
const SHORTEST: usize = 16;

/// The token that opens a port: one derived from the run's secret, or a random one.
#[derive(Clone, PartialEq, Eq)]
pub struct PageToken(String);

impl PageToken {
    /// `None` for a text that can be guessed, or has characters that are special in an address or a cookie.
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        (text.len() >= SHORTEST && text.chars().all(is_plain)).then(|| Self(text.to_owned()))
    }

    pub fn random() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }

    /// The token in plain text, for the address that is logged once.
    pub fn expose_secret(&self) -> &str {
        &self.0
    }

    /// Compares in constant time, so that the time of a wrong guess says nothing about the token.
    fn opens(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

impl fmt::Debug for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageToken(…)")
    }
}

/// The access rule of one port. `/healthz` and `/readyz` are open under every rule.
#[derive(Clone, Debug)]
pub enum PageAccess {
    /// Every reader that reaches a loopback address has access.
    ThisMachine,
    /// Every reader that reaches the port has access, at the wish of the job.
    Anyone,
    /// Every reader that has the token has access.
    Token {
        token: PageToken,
        /// The name has the port in it, because a browser shares its cookies between all ports of a host.
        cookie: String,
        /// Paths that need no token.
        open: &'static [&'static str],
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageEntry {
    Allowed,
    /// By an address with the token in it. From then on the browser uses this cookie.
    WithCookie(HeaderValue),
}

/// The answer to a request that is not let in.
pub(crate) const NO_TOKEN: (StatusCode, &str) = (
    StatusCode::UNAUTHORIZED,
    "this page needs its token: `zagros secret token` prints the token of a run's secret; open the address with \
     /?token= and that, or the one in the coordinator's log (\"live page\"); programs send `Authorization: Bearer \
     TOKEN`\n",
);

impl PageAccess {
    /// The rule of a page at `address`. It needs a token if one is given, or if other machines reach the address.
    pub fn new(address: SocketAddr, token: Option<PageToken>) -> Self {
        let cookie = format!("zagros_page_{}", address.port());
        match token {
            None if address.ip().is_loopback() => Self::ThisMachine,
            token => Self::Token { token: token.unwrap_or_else(PageToken::random), cookie, open: &PROBES },
        }
    }

    /// The same rule for the live page alone: `/metrics` and `/status` are open, in a run that asks no process for proof.
    #[must_use]
    pub fn of_page(self) -> Self {
        match self {
            Self::Token { token, cookie, .. } => {
                Self::Token { token, cookie, open: &["/healthz", "/readyz", "/metrics", "/status"] }
            }
            other => other,
        }
    }

    /// `None` for a request that is not let in.
    pub(crate) fn check_request(&self, headers: &HeaderMap, uri: &Uri) -> Option<PageEntry> {
        match self {
            // A port on a loopback address answers no other machine ([`super::serve`]).
            Self::ThisMachine | Self::Anyone => Some(PageEntry::Allowed),
            Self::Token { open, .. } if open.contains(&uri.path()) => Some(PageEntry::Allowed),
            Self::Token { token, cookie, .. } => {
                if bearer(headers).or_else(|| kept(headers, cookie)).is_some_and(|given| token.opens(given)) {
                    return Some(PageEntry::Allowed);
                }
                if !asked(uri).is_some_and(|given| token.opens(given)) {
                    return None;
                }
                let kept = format!("{cookie}={}; Path=/; HttpOnly; SameSite=Strict", token.expose_secret());
                HeaderValue::try_from(kept).map(PageEntry::WithCookie).ok()
            }
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

fn kept<'a>(headers: &'a HeaderMap, cookie: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = all.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == cookie).map(|(_, value)| value)
}

fn asked(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn request(name: &str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(axum::http::HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        headers
    }

    fn on_another_address() -> PageAccess {
        PageAccess::new("0.0.0.0:7780".parse().unwrap(), Some(PageToken::parse(TOKEN).unwrap()))
    }

    #[test]
    fn this_machine_needs_no_token() {
        let access = PageAccess::new("127.0.0.1:7780".parse().unwrap(), None);
        assert_eq!(access.check_request(&HeaderMap::new(), &Uri::from_static("/")), Some(PageEntry::Allowed));
    }

    #[test]
    fn on_another_address_the_token_opens_the_page_in_three_ways_and_nothing_else_does() {
        let access = on_another_address();
        let root = Uri::from_static("/");
        let ask = |headers: &HeaderMap, uri: &Uri| access.check_request(headers, uri);
        assert_eq!(ask(&request("authorization", &format!("Bearer {TOKEN}")), &root), Some(PageEntry::Allowed));
        let cookies = format!("other=1; zagros_page_7780={TOKEN}");
        assert_eq!(ask(&request("cookie", &cookies), &root), Some(PageEntry::Allowed));
        let Some(PageEntry::WithCookie(cookie)) = ask(&HeaderMap::new(), &Uri::from_static("/?token=0123456789abcdef"))
        else {
            panic!("the address with the token does not open");
        };
        assert_eq!(cookie.to_str().unwrap(), format!("zagros_page_7780={TOKEN}; Path=/; HttpOnly; SameSite=Strict"));
        for (name, value) in [
            ("authorization", "Bearer 0123456789abcdeF"),
            ("authorization", TOKEN),
            ("cookie", "zagros_page_7781=0123456789abcdef"),
            ("host", "127.0.0.1"),
        ] {
            assert_eq!(ask(&request(name, value), &root), None, "{name}: {value}");
        }
        assert_eq!(ask(&HeaderMap::new(), &Uri::from_static("/?token=")), None);
        let open =
            |access: &PageAccess, path| access.check_request(&HeaderMap::new(), &Uri::from_static(path)).is_some();
        for (path, everything, page) in [("/healthz", true, true), ("/status", false, true), ("/events", false, false)]
        {
            assert_eq!((open(&access, path), open(&access.clone().of_page(), path)), (everything, page), "{path}");
        }
    }

    #[test]
    fn a_page_that_needs_a_token_gets_a_new_random_one() {
        let made = |address: &str| match PageAccess::new(address.parse().unwrap(), None) {
            PageAccess::Token { token, .. } => Some(token),
            PageAccess::ThisMachine | PageAccess::Anyone => None,
        };
        assert_eq!((made("127.0.0.1:1"), made("[::1]:1")), (None, None));
        let (one, other) = (made("0.0.0.0:1").unwrap(), made("192.168.1.2:1").unwrap());
        assert!(one != other && PageToken::parse(one.expose_secret()).is_some());
        assert_eq!(format!("{one:?}"), "PageToken(…)", "a secret gets into logs by its debug form");
    }

    #[test]
    fn a_token_that_can_be_guessed_or_breaks_an_address_is_refused() {
        assert_eq!(["hunter2", "0123456789abcde;"].map(PageToken::parse), [None, None]);
    }
}
