//! The kinds of object stores, and how each is opened with the variables of the environment.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::error::explain_error;

/// Names and values of the variables that [`StoreKind`] names.
pub(crate) type Environment = [(String, String)];

/// A kind of store, by the scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// `s3://bucket`: Amazon S3, and stores that are compatible.
    S3,
    /// `gs://bucket`: Google Cloud Storage.
    Google,
    /// `az://container`: Azure Blob Storage.
    Azure,
    /// `http://host`, `https://host`: any server that answers requests for ranges. It has no list of files.
    Http,
}

pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) endpoint: String,
    /// Whether the environment has credentials. If not, the machine's own credentials are requested.
    pub(crate) has_key: bool,
}

/// Variables with credentials for S3, or that say where credentials are, or that none are needed.
const S3_CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];
impl StoreKind {
    pub(crate) fn split_url(url: &str) -> Option<(Self, &str)> {
        let (scheme, rest) = url.split_once("://")?;
        let kind = match scheme {
            "s3" => Self::S3,
            "gs" => Self::Google,
            "az" => Self::Azure,
            "http" | "https" => Self::Http,
            _ => return None,
        };
        Some((kind, rest))
    }

    fn prefix(self) -> &'static str {
        self.names().0
    }

    /// The prefix of its variables, and the service without an endpoint.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::S3 => ("AWS_", "AWS"),
            Self::Google => ("GOOGLE_", "Google Cloud Storage"),
            Self::Azure => ("AZURE_", "Azure"),
            Self::Http => ("HTTP_", "HTTP"),
        }
    }

    pub(crate) fn is_variable(name: &str) -> bool {
        [Self::S3, Self::Google, Self::Azure].iter().any(|kind| name.starts_with(kind.prefix()))
    }

    fn endpoint(self, root: &str, environment: &Environment) -> Option<String> {
        let names: &[&str] = match self {
            Self::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
            Self::Google => &["GOOGLE_BASE_URL"],
            Self::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
            Self::Http => return Some(root.split('?').next().unwrap_or(root).to_owned()),
        };
        names.iter().find_map(|name| variable(environment, name)).map(str::to_owned)
    }
}

impl OpenStore {
    /// Opens a store by its root, `s3://bucket`, `https://host` and so on, which may end with the query of a URL. Makes no
    /// request.
    ///
    /// Returns the address and the reason if the environment contradicts itself.
    pub(crate) fn open(
        root: &str,
        environment: &Environment,
        options: ClientOptions,
        retry: RetryConfig,
    ) -> Result<Self, (String, String)> {
        let Some((kind, name)) = StoreKind::split_url(root) else {
            return Err((root.to_owned(), "only s3://, gs://, az://, http:// and https:// are stores".to_owned()));
        };
        let endpoint = kind.endpoint(root, environment);
        let reported = endpoint.as_deref().map_or_else(|| kind.names().1.to_owned(), without_user);
        let allow = format!("{}ALLOW_HTTP", kind.prefix());
        // Who writes http:// means it.
        let http_allowed = kind == StoreKind::Http
            || variable(environment, &allow).is_some_and(|allow| ["true", "1"].contains(&allow));
        if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) && !http_allowed {
            let reason = format!("the endpoint uses http, which is not encrypted; use https, or set {allow}=true");
            return Err((reported, reason));
        }
        let options = options.with_allow_http(http_allowed);
        let has_key = match kind {
            StoreKind::S3 => S3_CREDENTIALS.iter().any(|name| variable(environment, name).is_some()),
            StoreKind::Google | StoreKind::Azure => environment.iter().any(|(name, _)| name.starts_with(kind.prefix())),
            StoreKind::Http => true,
        };
        let store = build(kind, root, name, environment, options, retry);
        let store = store.map_err(|error| (reported.clone(), explain_error(&error).1))?;
        Ok(Self { store, endpoint: reported, has_key })
    }
}

fn build(
    kind: StoreKind,
    root: &str,
    name: &str,
    environment: &Environment,
    options: ClientOptions,
    retry: RetryConfig,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    // Variables that these do not know belong to other programs.
    macro_rules! configured {
        ($builder:expr, $key:ty) => {{
            let own = environment.iter().map(|(key, value)| (key.to_ascii_lowercase(), value));
            let own = own.filter(|(key, _)| key.starts_with(&kind.prefix().to_ascii_lowercase()));
            let known = own.filter_map(|(key, value)| Some((key.parse::<$key>().ok()?, value)));
            let builder = known.fold($builder, |builder, (key, value)| builder.with_config(key, value));
            builder.with_client_options(options).with_retry(retry)
        }};
    }
    Ok(match kind {
        StoreKind::S3 => {
            let builder = configured!(AmazonS3Builder::new(), AmazonS3ConfigKey);
            // Not every store supports deletion of several objects in one request.
            Arc::new(builder.with_bucket_name(name).with_disable_bulk_delete(true).build()?)
        }
        StoreKind::Google => {
            let builder = configured!(GoogleCloudStorageBuilder::new(), GoogleConfigKey);
            Arc::new(builder.with_bucket_name(name).build()?)
        }
        StoreKind::Azure => {
            let builder = configured!(MicrosoftAzureBuilder::new(), AzureConfigKey);
            Arc::new(builder.with_container_name(name).build()?)
        }
        StoreKind::Http => {
            Arc::new(HttpBuilder::new().with_url(root).with_client_options(options).with_retry(retry).build()?)
        }
    })
}

fn variable<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
    environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let address = rest.split_once('@').map_or(rest, |(_, address)| address);
    if scheme.is_empty() { address.to_owned() } else { format!("{scheme}://{address}") }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom};
    use std::time::Duration;

    use zagros_fakes::s3::{FakeS3, S3Fault};

    use super::*;
    use crate::{ObjectUrl, Objects};

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn passwords_in_an_endpoint_are_not_reported() {
        assert_eq!(without_user("https://user:secret@s3.example:9000/x"), "https://s3.example:9000/x");
        assert_eq!(without_user("http://127.0.0.1:9000"), "http://127.0.0.1:9000");
    }

    fn content() -> Vec<u8> {
        crate::tests::pattern(2_500_000)
    }

    fn check_reading(objects: &Objects, key: &str) {
        let found = objects.find(key).unwrap().unwrap();
        assert_eq!(found.bytes, content().len() as u64);
        let (mut input, mut all, mut part) = (objects.open_input(&found).unwrap(), Vec::new(), [0; 100]);
        input.read_to_end(&mut all).unwrap();
        input.seek(SeekFrom::Start(1_000_000)).unwrap();
        input.read_exact(&mut part).unwrap();
        assert!(all == content() && part[..] == content()[1_000_000..1_000_100]);
        assert_eq!(&objects.read_part(&found, 7..9).unwrap()[..], &content()[7..9]);
    }

    #[test]
    fn objects_of_google_and_azure_are_listed_and_read() {
        let store = FakeS3::start("logs");
        ["day/a", "day/b", "day/c", "day/d/e", "x"].iter().for_each(|key| store.put_object(key, content()));
        for root in ["gs://logs", "az://logs"] {
            let objects = Objects::open_in(&store.environment_of_others(), root, TIMEOUT).unwrap();
            let below = objects.list_below("day").unwrap();
            let keys: Vec<_> = below.iter().map(|found| (found.key.as_str(), found.bytes)).collect();
            let bytes = content().len() as u64;
            assert_eq!(keys, ["day/a", "day/b", "day/c", "day/d/e"].map(|key| (key, bytes)), "{root}");
            check_reading(&objects, "day/d/e");
            assert_eq!(objects.find("day/none").unwrap(), None);
        }
    }

    #[test]
    fn a_file_of_a_web_server_is_read_by_ranges() {
        let server = FakeS3::start_open("files");
        server.put_object("day 1/a.csv", content());
        let url = ObjectUrl::parse(&format!("{}/files/day%201/a.csv?signature=1", server.base_url())).unwrap();
        let objects = Objects::open_in(&[], &url.root, TIMEOUT).unwrap();
        assert!(!objects.has_list());
        check_reading(&objects, &url.key);
        assert_eq!(objects.find("files/none").unwrap(), None);
        server.inject_fault(S3Fault::Denies, "GET /files", 1);
        let error = objects.find(&url.key).unwrap_err().to_string();
        assert!(error.contains("the request was refused") && error.contains("signature may have expired"), "{error}");
        assert!(!error.contains("signature=1"), "{error}");
    }

    #[test]
    fn a_url_that_allows_get_alone_is_read() {
        let server = FakeS3::start_open("files");
        server.put_object("a.csv", content());
        server.put_object("empty.csv", "");
        let objects = Objects::open_in(&[], &server.base_url(), TIMEOUT).unwrap();
        assert_eq!(objects.find("files/empty.csv").unwrap().unwrap().bytes, 0);
        server.inject_fault(S3Fault::Denies, "HEAD /files", 99);
        check_reading(&objects, "files/a.csv");
    }

    #[test]
    fn who_is_refused_learns_which_variables_to_check() {
        let store = FakeS3::start("logs");
        let (s3, others) = (store.environment_variables(), store.environment_of_others());
        for (root, environment, variable) in [
            ("gs://logs", &others, "GOOGLE_APPLICATION_CREDENTIALS"),
            ("az://logs", &others, "AZURE_STORAGE_ACCOUNT_KEY"),
            ("s3://logs", &s3, "AWS_ACCESS_KEY_ID"),
        ] {
            let given = environment.iter().filter(|(name, _)| !name.ends_with("BEARER_TOKEN"));
            let mut environment: Vec<_> =
                given.map(|(name, value)| (name.clone(), value.replace("test-key", "other"))).collect();
            environment.push(("GOOGLE_SKIP_SIGNATURE".to_owned(), "true".to_owned()));
            let objects = Objects::open_in(&environment, root, TIMEOUT).unwrap();
            let error = objects.list_below("").unwrap_err().to_string();
            assert!(error.contains(variable), "{error}");
        }
    }
}
