//! Tests with a GitHub App instead of a person's token.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::github::{self, GithubOptions};
use leasehold::store::{Store, StoreUrl};
use leasehold::testing::TestClient;

use super::fake::{App, Fake, Fate, Person};
use super::support::{fake, test_client};

const TOKEN_REQUEST: &str = "POST /app/installations/7/access_tokens";

/// Installs an App with its own login, to which issues cannot be assigned; returns a client with
/// its key.
async fn install(fake: &Fake) -> Arc<dyn Store> {
    github::connect(installed(fake)).await.unwrap()
}

fn installed(fake: &Fake) -> GithubOptions {
    let (app, pem) = App::new("robot[bot]");
    fake.person("robot[bot]", Person { is_bot: true, association: "NONE", can_push: false });
    let options = GithubOptions::from_url(&StoreUrl::parse(&fake.url()).unwrap()).unwrap();
    let mut options = options.with_app(&*app.id, &*app.installation, &pem).unwrap();
    options.gap = Duration::ZERO;
    fake.repo().app = Some(app);
    options
}

fn token_requests(fake: &Fake) -> usize {
    fake.requests().iter().filter(|request| request.ends_with(TOKEN_REQUEST)).count()
}

/// The clock of the fake differs from the machine's by years: the first JSON Web Token is refused
/// for its date, the second is accepted.
#[tokio::test]
async fn an_app_authenticates_with_any_clock_and_requests_one_token() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let robot = TestClient::new(install(&fake).await, 7, LockName::new("#1").unwrap());
    assert_eq!(token_requests(&fake), 2);
    let lease = robot.acquire().await;
    // A client that works together with an App of others has to name it.
    let mut ada = test_client(&fake, "ada", "#1").await;
    let mut options = super::support::options(&fake, "ada");
    options.workers = vec!["robot[bot]".to_owned()];
    ada.store = github::connect(options).await.unwrap();
    ada.expect_conflict().await;
    robot.release(&lease).await;
    assert_eq!(token_requests(&fake), 0, "one token is used for all requests");
}

#[tokio::test]
async fn a_token_that_expires_early_is_replaced() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let robot = TestClient::new(install(&fake).await, 7, LockName::new("#1").unwrap());
    token_requests(&fake);
    fake.plan("POST /comments", Fate::Refuse(401, Vec::new()));
    robot.acquire().await;
    assert_eq!(token_requests(&fake), 1);
    assert_eq!(fake.repo().issues[&1].comments.len(), 1);
}

#[tokio::test]
async fn a_key_of_another_app_is_refused_without_showing_it() {
    let (fake, _) = fake().await;
    drop(install(&fake).await);
    let (_, other) = App::new("robot[bot]");
    let options = GithubOptions::from_url(&StoreUrl::parse(&fake.url()).unwrap()).unwrap();
    let Err(error) = github::connect(options.clone().with_app("4711", "7", &other).unwrap()).await else {
        panic!("the key of another App was accepted")
    };
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    let key = other.lines().nth(1).unwrap();
    assert!(!format!("{error:?} {error}").contains(key));
    let error = options.with_app("4711", "7", "-----BEGIN NOTHING-----").unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error}");
}

/// Otherwise, bots that repeat what strangers write would let strangers keep an App out.
#[tokio::test]
async fn an_app_without_comments_trusts_its_own_login_and_no_other_bot() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let mut options = installed(&fake);
    options.alone = true;
    let deploy = LockName::new("#1").unwrap();
    let robot = TestClient::new(github::connect(options.clone()).await.unwrap(), 7, deploy.clone());
    robot.acquire().await;
    let other = github::connect(options.clone()).await.unwrap();
    let seen = other.locks().get(&deploy).await.unwrap().unwrap();
    assert_eq!(seen.holders.len(), 1, "another process of the same App holds it");

    let body = fake.repo().issues[&1].comments.values().next().unwrap().body.clone();
    let number = fake.new_issue("Another");
    fake.person("quoter[bot]", Person { is_bot: true, association: "NONE", can_push: false });
    fake.write(number, "quoter[bot]", &body);
    let fresh = github::connect(options).await.unwrap();
    TestClient::new(fresh, 8, LockName::new(format!("#{number}")).unwrap()).acquire().await;
}

/// The token of a workflow cannot query its own login.
#[tokio::test]
async fn a_token_of_an_app_trusts_the_named_bots_or_that_of_workflows() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    ada.acquire().await;
    let body = fake.repo().issues[&issue].comments.values().next().unwrap().body.clone();
    // The fake takes the login from the token; a token without a login has the empty login.
    fake.person("", Person { is_bot: true, association: "NONE", can_push: false });
    for (bots, author, counts) in [
        (vec![], "github-actions[bot]", true),
        (vec![], "quoter[bot]", false),
        (vec!["deploy[bot]".to_owned()], "deploy[bot]", true),
        (vec!["deploy[bot]".to_owned()], "github-actions[bot]", false),
    ] {
        fake.person(author, Person { is_bot: true, association: "NONE", can_push: false });
        let number = fake.new_issue("Another");
        fake.write(number, author, &body);
        let mut options = super::support::options(&fake, "ada").with_token("ghs_of-a-workflow");
        (options.bots, options.alone) = (bots, true);
        let store = github::connect(options).await.unwrap();
        let name = LockName::new(format!("#{number}")).unwrap();
        let held = store.locks().get(&name).await.unwrap().is_some_and(|record| !record.holders.is_empty());
        assert_eq!(held, counts, "{author}");
    }
}
