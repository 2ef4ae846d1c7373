"""`nibble pull` over TLS: whose certificate is trusted, and what happens to a token where none is."""
import pathlib
import unittest

from fake_hub import FakeHub
from hub_testing import HubTest, UNAVAILABLE, small_repo

CERTIFICATES = pathlib.Path(__file__).resolve().parent / "certificates"
TOKEN = "hf_SecretSecretSecret"


def certificate(name):
    return str(CERTIFICATES / (name + ".pem"))


class Tls(HubTest):
    def trusting(self, name):
        return {"SSL_CERT_FILE": certificate(name), "HF_TOKEN": TOKEN}

    def refused(self, hub, env):
        """The pull ends at the first handshake, without a request and without another attempt."""
        outcome = self.pull(hub, env=env, expect=UNAVAILABLE)
        self.assertRegex(outcome.stderr, "certificate|SSL")
        self.assertIn("SSL_CERT_FILE", outcome.stderr)
        self.assertNotIn("Gave up after", outcome.stderr)
        self.assertFalse((self.root / "blobs").exists())
        return outcome

    def test_an_authority_of_ones_own_is_trusted(self):
        with FakeHub(small_repo(), token=TOKEN, certificate=certificate("server")) as hub:
            self.assertTrue(hub.endpoint.startswith("https://"))
            self.pull(hub, env=self.trusting("authority"))
            self.assert_complete(hub)
            storage = self.storage_requests(hub)
            self.assertTrue(storage)
            self.assertTrue(all(request[3] is None for request in storage))

    def test_wrong_certificates_are_refused_before_the_token_is_sent(self):
        cases = {
            "an authority that the system does not know": ("server", None),
            "another authority": ("server", "other_authority"),
            "a server of another authority": ("other_server", "authority"),
            "another host's": ("other_host", "authority"),
            "expired": ("expired", "authority"),
        }
        for name, (server, trusted) in cases.items():
            with self.subTest(name):
                env = self.trusting(trusted) if trusted else {"HF_TOKEN": TOKEN}
                with FakeHub(small_repo(), token=TOKEN, certificate=certificate(server)) as hub:
                    outcome = self.refused(hub, env)
                    self.assertEqual(hub.requests, [])
                    self.assertNotIn(TOKEN, outcome.stderr)

    def test_the_storage_host_is_checked_as_well(self):
        with FakeHub(small_repo(), certificate=certificate("server"),
                     storage_certificate=certificate("other_server")) as hub:
            outcome = self.pull(hub, env=self.trusting("authority"), expect=UNAVAILABLE)
            self.assertIn("127.0.0.2", outcome.stderr)
            self.assertNotIn("signature", outcome.stderr)
            self.assertEqual(self.storage_requests(hub), [])
            self.assert_only_right_blobs(hub)
            self.assertFalse((self.root / "refs" / "main").exists())

    def test_a_redirect_does_not_leave_encryption(self):
        with FakeHub(small_repo()) as plain, FakeHub(small_repo(), certificate=certificate("server")) as hub:
            hub.redirect_to = plain.storage_origin
            outcome = self.pull(hub, env=self.trusting("authority"), expect=UNAVAILABLE)
            self.assertIn("to an unencrypted address", outcome.stderr)
            self.assertEqual(plain.requests, [])

    def test_a_file_of_authorities_that_is_not_there_is_said(self):
        with FakeHub(small_repo(), certificate=certificate("server")) as hub:
            outcome = self.pull(hub, env={"SSL_CERT_FILE": str(self.home / "absent.pem")}, expect=UNAVAILABLE)
            self.assertIn("absent.pem", outcome.stderr)

    def test_plain_text_where_tls_is_expected(self):
        with FakeHub(small_repo()) as hub:
            hub.hub.origin = hub.endpoint.replace("http:", "https:")
            self.pull(hub, "--attempts", "2", env=self.trusting("authority"), expect=UNAVAILABLE)


if __name__ == "__main__":
    unittest.main()
