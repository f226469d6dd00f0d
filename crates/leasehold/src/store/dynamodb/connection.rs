//! Opens the client and the table, and reads the service's time from every response.

use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, ProvideCredentials, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

use super::error::{NO_CREDENTIALS, with_cause};
use super::options::DynamoDbOptions;
use super::table::{self, Table};
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::background::Background;
use crate::store::server_clock::{Judge, ServerClock};
use crate::store::{BootInstant, Cas, LeaseObservations, Store};

const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Timeout of all attempts of one request together; slightly less than the deadline of a call.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(4800);
/// Timeout for finding credentials, which may take several requests over the network.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens the table that the options name. The table must exist: it costs money, so a mistyped name
/// must not create one.
pub async fn connect(options: DynamoDbOptions) -> Result<impl Store> {
    let background = Background::start("leasehold-dynamodb")?;
    let observations = if options.separate_observations {
        LeaseObservations::default()
    } else {
        LeaseObservations::of_this_process()
    };
    let table = background
        .run(async move {
            let table = open(options).await?;
            table::check(&table).await?;
            if matches!(table.options.judge, Judge::Date { .. }) && table.dates.lower_bound(BootInstant::now()).is_none() {
                return Err(Error::store(
                    StoreErrorKind::Misconfigured,
                    "the responses of this endpoint have no Date header, which decides whether a lease has expired",
                    "let the proxy pass the header on, or set clock=watch for all clients of this table",
                ));
            }
            Ok(table)
        })
        .await?;
    Ok(Cas::on(background, table, observations))
}

/// Creates the table, billed on demand, and waits until it can be used. Does nothing if the table
/// exists; safe when several clients do so at once.
pub async fn create_table(options: &DynamoDbOptions) -> Result<()> {
    let options = options.clone();
    let background = Background::start("leasehold-dynamodb")?;
    background.run(async move { table::create(&open(options).await?).await }).await
}

async fn open(options: DynamoDbOptions) -> Result<Table> {
    let http =
        aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
    if let Some(region) = &options.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(profile) = &options.profile {
        loader = loader.profile_name(profile);
    }
    let config = loader.load().await;
    if config.region().is_none() {
        return Err(Error::store(
            StoreErrorKind::Misconfigured,
            format!("no AWS region is set for the DynamoDB table '{}'", options.table),
            "write dynamodb://TABLE?region=eu-west-1, or set AWS_REGION",
        ));
    }
    find_credentials(&config).await?;
    let dates = ServerClock::new();
    let retries = RetryConfig::standard()
        .with_max_attempts(3)
        .with_initial_backoff(Duration::from_millis(50))
        .with_max_backoff(Duration::from_secs(1));
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(ATTEMPT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(REQUEST_TIMEOUT)
        .build();
    let mut config = aws_sdk_dynamodb::config::Builder::from(&config)
        .retry_config(retries)
        .timeout_config(timeouts)
        .interceptor(dates.clone());
    // Set only here: the search for credentials has addresses of its own.
    if let Some(endpoint) = &options.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Ok(Table { client: Client::from_conf(config.build()), options, dates })
}

/// Looks for credentials before the first request: this may take longer than a request may.
async fn find_credentials(config: &aws_config::SdkConfig) -> Result<()> {
    let message = || "there are no AWS credentials for DynamoDB".to_owned();
    let Some(provider) = config.credentials_provider() else {
        return Err(Error::store(StoreErrorKind::Misconfigured, message(), NO_CREDENTIALS));
    };
    match tokio::time::timeout(CREDENTIALS_TIMEOUT, provider.provide_credentials()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(with_cause(StoreErrorKind::Misconfigured, message(), NO_CREDENTIALS, &error)),
        Err(elapsed) => Err(with_cause(StoreErrorKind::Misconfigured, message(), NO_CREDENTIALS, &elapsed)),
    }
}

/// Observes the `Date` header of every response of every call.
impl Intercept for ServerClock {
    fn name(&self) -> &'static str {
        "leasehold-dates"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        if let Some(date) = date {
            self.observe(date.secs(), BootInstant::now());
        }
        Ok(())
    }
}
