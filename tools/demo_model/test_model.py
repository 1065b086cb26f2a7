"""Checks of model.py, train.py and checkpoint.py that need torch: python3 -m unittest test_model"""

import math
import pathlib
import tempfile
import unittest

import torch

import checkpoint
import model
import train
import weights

SMALL = model.Config(
    vocab=64,
    hidden=32,
    layers=4,
    dense=32,
    kda_heads=2,
    kda_dim=16,
    heads=2,
    nope=16,
    rope=16,
    v_dim=16,
    q_lora=16,
    kv_lora=16,
    experts=4,
    top_k=2,
    latent=16,
    expert_width=32,
)


class Model(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_chunks_of_kda_are_its_steps(self):
        q, k, v = (torch.randn(2, 3, 64, 32, dtype=torch.float64) for _ in range(3))
        k = torch.nn.functional.normalize(k, dim=-1)
        for low, high in ((1e-3, 1), (1, 5), (4.9, 5)):
            decay = -torch.empty_like(q).uniform_(math.log(low), math.log(high)).exp()
            beta = torch.rand(2, 3, 64, dtype=torch.float64)
            steps = model.kda_steps(q, k, v, decay, beta)
            chunks = model.kda_chunks(*(x.float() for x in (q, k, v, decay, beta)), 16)
            self.assertLess((steps - chunks).abs().max(), 1e-5)

    def test_nvfp4_has_its_values_and_the_scale_of_its_partner(self):
        a, b = torch.randn(3, 8, 32), 9 * torch.randn(3, 8, 32)
        alone, shared = model.fake_nvfp4(a), model.fake_nvfp4(a, b)
        self.assertFalse(torch.equal(alone, shared))
        for rounded in (alone, shared):
            self.assertLess((rounded - a).norm() / a.norm(), 0.12)
        x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] * 2).view(1, 1, 16) * 448
        expected = torch.tensor([0, 1, 1, 2, 2, 4, 4, 6] * 2).view(1, 1, 16) * 448.0
        self.assertTrue(torch.equal(model.fake_nvfp4(x), expected))  # ties to even

    def test_a_later_token_does_not_change_an_earlier_one(self):
        net = model.Model(SMALL)
        ids = torch.randint(0, 64, (1, 32))
        other = ids.clone()
        other[0, 20] = (other[0, 20] + 1) % 64
        a, b = net(ids)[0], net(other)[0]
        self.assertTrue(torch.allclose(a[:20], b[:20], atol=1e-5))
        self.assertFalse(torch.allclose(a[20:], b[20:], atol=1e-5))


class Files(unittest.TestCase):
    def test_weights_and_checkpoints_come_back(self):
        torch.manual_seed(0)
        net = model.Model(SMALL)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            weights.write(net, path / "w")
            state = weights.read(path / "w")
            for name, tensor in net.state_dict().items():
                rounded = tensor.bfloat16().float() if weights.is_matrix(name, tensor) else tensor
                self.assertTrue(torch.equal(state[name], rounded), name)
            checkpoint.write_safetensors(path / "m.safetensors", checkpoint.to_names(state, SMALL))
            back = checkpoint.read_checkpoint(path, SMALL).state_dict()
            for name, tensor in state.items():
                kept = name.endswith(checkpoint.F32) or weights.is_matrix(name, tensor)
                expected = tensor if kept else tensor.bfloat16().float()
                self.assertTrue(torch.equal(back[name], expected), name)


class Optimiser(unittest.TestCase):
    def test_a_direction_has_singular_values_near_one(self):
        torch.manual_seed(0)
        for shape in ((3, 40, 24), (3, 24, 40)):
            values = torch.linalg.svdvals(train.orthogonalised(torch.randn(shape)).float())
            self.assertTrue(((values > 0.5) & (values < 1.4)).all(), values)


if __name__ == "__main__":
    unittest.main()
