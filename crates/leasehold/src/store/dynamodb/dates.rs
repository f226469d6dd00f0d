//! Reads the time from every answer of the service.

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};

use crate::store::BootInstant;
pub(super) use crate::store::dates::Dates;

/// Observes the `Date` of every answer of every call.
impl Intercept for Dates {
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
            self.hear(date.secs(), BootInstant::now());
        }
        Ok(())
    }
}
