"""Settings of who may connect: listeners, TLS and SASL. docs/security.md explains them."""

from typing import Annotated, Literal

from penstock.config.about import DAY_MS, KIB, MIB, of_security
from penstock.config.place_settings import PlaceSettings


class SecuritySettings(PlaceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `ServerSettings`."""

    listeners: Annotated[
        str,
        of_security(
            "NAME://HOST:PORT, several separated by commas: the listeners of Kafka clients, in "
            "place of `kafka` and `advertised`. A name is PLAINTEXT, SSL, SASL_PLAINTEXT or "
            "SASL_SSL, or any other that `listener_security_protocol_map` knows. Workers of a host "
            "add their number to each port.",
            kafka="listeners",
        ),
    ] = ""
    advertised_listeners: Annotated[
        str,
        of_security(
            "NAME://HOST:PORT of the same names: where clients that came by a listener find the "
            "server again. A listener that isn't named is found at its own address.",
            kafka="advertised.listeners",
        ),
    ] = ""
    listener_security_protocol_map: Annotated[
        str,
        of_security(
            "NAME:PROTOCOL, several separated by commas, of listeners whose names are not "
            "protocols.",
            kafka="listener.security.protocol.map",
        ),
    ] = ""
    ssl_certificate: Annotated[
        str,
        of_security(
            "File of the certificate of SSL and SASL_SSL listeners, in PEM, followed by those of "
            "intermediate authorities. It is read again once it changes."
        ),
    ] = ""
    ssl_key: Annotated[
        str,
        of_security(
            "File of the certificate's private key, in PEM, which only the server's user may read. "
            "Empty: the key is in the certificate's file."
        ),
    ] = ""
    ssl_ca: Annotated[
        str,
        of_security(
            "File of the certificates of the authorities whose clients are taken, in PEM.",
        ),
    ] = ""
    ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        of_security(
            "Whether clients of SSL listeners must show a certificate of an authority in `ssl_ca`. "
            "`requested`: those that show none are anonymous.",
            kafka="ssl.client.auth",
        ),
    ] = "none"
    ssl_protocol_min: Annotated[
        Literal["tlsv1.2", "tlsv1.3"],
        of_security("The oldest version of TLS that clients may speak."),
    ] = "tlsv1.2"
    ssl_principal_mapping_rules: Annotated[
        str,
        of_security(
            "RULE:PATTERN/REPLACEMENT/ or DEFAULT, several separated by commas: how the "
            "distinguished name of a client's certificate becomes a user's name. An L or U after "
            "the last slash makes the name lower or upper case.",
            kafka="ssl.principal.mapping.rules",
        ),
    ] = "DEFAULT"
    sasl_enabled_mechanisms: Annotated[
        str,
        of_security(
            "The mechanisms of SASL_SSL and SASL_PLAINTEXT listeners, separated by commas: PLAIN, "
            "SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
            kafka="sasl.enabled.mechanisms",
        ),
    ] = "SCRAM-SHA-512,SCRAM-SHA-256"
    sasl_server_max_receive_size: Annotated[
        int,
        of_security(
            "Bytes of a request at most, before its client has authenticated.",
            KIB,
            MIB,
            "sasl.server.max.receive.size",
        ),
    ] = 512 * KIB
    authentication_timeout_ms: Annotated[
        int,
        of_security(
            "How long a client may take for the handshake of TLS, and then for SASL, before its "
            "connection is closed.",
            100,
            600_000,
        ),
    ] = 10_000
    connection_failed_authentication_delay_ms: Annotated[
        int,
        of_security(
            "A failed authentication is answered this much later, so that guessing is slow.",
            0,
            10_000,
            "connection.failed.authentication.delay.ms",
        ),
    ] = 100
    connections_max_reauth_ms: Annotated[
        int,
        of_security(
            "How long a client may use what it has shown before it must authenticate again "
            "(KIP-368). 0: for as long as its connection lasts, or its token is valid.",
            0,
            365 * DAY_MS,
            "connections.max.reauth.ms",
        ),
    ] = 0
    sasl_oauthbearer_jwks: Annotated[
        str,
        of_security(
            "File of the keys of OAUTHBEARER's tokens, a JWKS. It is read again once it changes."
        ),
    ] = ""
    sasl_oauthbearer_expected_issuer: Annotated[
        str,
        of_security("The issuer that a token must name.", kafka="sasl.oauthbearer.expected.issuer"),
    ] = ""
    sasl_oauthbearer_expected_audience: Annotated[
        str,
        of_security(
            "The audiences of which a token must name one, separated by commas.",
            kafka="sasl.oauthbearer.expected.audience",
        ),
    ] = ""
    sasl_oauthbearer_algorithms: Annotated[
        str,
        of_security(
            "The algorithms by which a token may be signed, separated by commas. Those with a "
            "shared secret, and `none`, are never taken."
        ),
    ] = "RS256,ES256"
    sasl_oauthbearer_sub_claim_name: Annotated[
        str,
        of_security(
            "The claim of a token that is the user's name.",
            kafka="sasl.oauthbearer.sub.claim.name",
        ),
    ] = "sub"
    sasl_oauthbearer_clock_skew_ms: Annotated[
        int,
        of_security(
            "How far the clock of a token's issuer may be from this server's.",
            0,
            600_000,
        ),
    ] = 30_000
