"""Networks as flat vectors: what is where, back and forth without loss, and errors that say what to do."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from coterie.errors import ModelError, UnknownName, UsageError
from coterie.models.dropout import AddressedDropout
from coterie.models.model import Model, head_of
from coterie.models.zoo import build_model, default_for, models

ZOO = {
    "mlp": (1, 8, 8),
    "mlp(16)": (7,),
    "mlp(9,5)": (2, 3),
    "logistic": (4,),
    "linear": (4,),
    "tabular": (11,),
    "tabular(8,depth=3,dropout=0.5)": (11,),
    "cnn": (1, 12, 12),
    "lenet": (3, 32, 32),
    "cnn-joint": (1, 12, 12),
    "cnn-joint(kernel=5)": (1, 12, 12),
    "cnn-lcfl": (1, 12, 12),
    "cnn-lcfl(padding=0)": (1, 28, 28),
    "tiny-vgg": (3, 8, 8),
    "tiny-vgg(4)": (1, 8, 8),
}
CLASSES = 5


@pytest.fixture(params=ZOO)
def model(request) -> Model:
    return build_model(request.param, ZOO[request.param], CLASSES)


def outputs(module, shape):
    with torch.no_grad():
        return module.eval()(torch.arange(2.0 * np.prod(shape)).reshape(2, *shape) / np.prod(shape))


def test_the_whole_zoo_is_covered_here():
    assert {text.partition("(")[0] for text in ZOO} | {"resnet34", "bag"} == set(models)


class TestFlatVectors:
    def test_a_row_becomes_the_same_network_again(self, model):
        torch.manual_seed(3)
        module = model.module()
        again = model.with_row(*model.flatten(module))
        torch.testing.assert_close(outputs(module, model.shape), outputs(again, model.shape))
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name

    def test_a_network_becomes_the_same_row_again(self, model):
        rng = np.random.default_rng(0)
        row = [rng.random(n, dtype=np.float32) for n in (model.layout.size, model.layout.buffer_size)]
        for part, again in zip(row, model.flatten(model.with_row(*row)), strict=True):
            assert np.array_equal(part, again)

    def test_a_bound_network_and_its_row_are_the_same_memory(self, model):
        params, buffers = (torch.from_numpy(part) for part in model.initial(0))
        module = model.bind(params, buffers)
        before = outputs(module, model.shape)
        params.zero_()
        assert not any(p.any() for p in module.parameters())
        with torch.no_grad():
            for p in module.parameters():
                p.fill_(1)
        assert (params == 1).all()
        assert not torch.equal(outputs(module, model.shape), before)

    def test_a_network_with_a_copy_of_a_row_leaves_the_row_alone(self, model):
        params, buffers = model.initial(0)
        with torch.no_grad():
            for p in model.with_row(params, buffers).parameters():
                p.zero_()
        assert params.any()

    def test_every_coordinate_belongs_to_one_tensor(self, model):
        covered = np.concatenate([np.arange(s.start, s.stop) for s in model.slots])
        assert np.array_equal(covered, np.arange(model.layout.size))
        assert model.layout.size == sum(p.numel() for p in model.module().parameters())

    def test_counters_are_not_among_the_buffers(self):
        model = build_model("cnn", (1, 12, 12), CLASSES)
        assert model.layout.buffer_size == 2 * (16 + 32)
        assert not any("num_batches" in slot.name for slot in model.buffer_slots)

    def test_image_kernels_lie_channels_last(self):
        model = build_model("lenet", (3, 32, 32), CLASSES)
        module = model.bind(*(torch.from_numpy(part) for part in model.initial(0)))
        kernels = [p for p in module.parameters() if p.dim() == 4]
        assert len(kernels) == 2
        assert all(k.is_contiguous(memory_format=torch.channels_last) for k in kernels)

    def test_many_rows_are_viewed_at_once(self, model):
        stack = torch.arange(2.0 * model.layout.size).reshape(2, -1)
        for slot in model.slots:
            both = slot.view(stack)
            assert both.shape == (2, *slot.shape)
            assert torch.equal(both[1], slot.view(stack[1]))


class TestInitialModels:
    def test_the_same_seed_gives_the_same_model(self, model):
        one, same, other = (model.initial(seed)[0] for seed in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_torch_s_global_generator_is_left_alone(self, model):
        before = torch.random.get_rng_state()
        params, buffers = model.initial(1)
        model.with_row(params, buffers)
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_it_is_what_the_layers_would_draw(self):
        torch.manual_seed(4)
        layer = nn.Linear(4, CLASSES)
        params, _ = build_model("logistic", (4,), CLASSES).initial(4)
        assert np.array_equal(params, torch.cat([layer.weight.flatten(), layer.bias]).detach().numpy())


class TestParts:
    def test_head_and_body_are_disjoint_and_complete(self, model):
        both = np.concatenate([model.layout.parts["head"], model.layout.parts["body"]])
        assert np.array_equal(np.sort(both), np.arange(model.layout.size))
        buffers = np.concatenate([model.layout.buffer_parts["head"], model.layout.buffer_parts["body"]])
        assert np.array_equal(np.sort(buffers), np.arange(model.layout.buffer_size))

    def test_the_head_is_the_last_linear_layer(self, model):
        last = [m for m in model.module().modules() if isinstance(m, nn.Linear)][-1]
        assert model.layout.numbers("head").size == last.weight.numel() + last.bias.numel()
        assert model.layout.numbers("head_weight").size == last.weight.numel()
        params, buffers = model.initial(0)
        weight = [m for m in model.with_row(params, buffers).modules() if isinstance(m, nn.Linear)][-1].weight
        assert np.array_equal(params[model.layout.part("head_weight")], weight.detach().flatten().numpy())

    def test_linear_is_every_linear_layer_and_all_is_everything(self, model):
        layers = [m for m in model.module().modules() if isinstance(m, nn.Linear)]
        assert model.layout.numbers("linear").size == sum(p.numel() for m in layers for p in m.parameters())
        assert model.layout.part("all") == slice(0, model.layout.size)

    @pytest.mark.parametrize(
        ("text", "shape", "sizes"),
        [
            (
                "mlp(16)",
                (1, 8, 8),
                {
                    "all": 1125,
                    "head": 85,
                    "head_weight": 80,
                    "body": 1040,
                    "linear": 1125,
                    "projection": 85,
                    "features": 1040,
                },
            ),
            (
                "cnn",
                (1, 28, 28),
                {"all": 21189, "head": 7845, "body": 13344, "linear": 7845, "projection": 7845, "features": 13344},
            ),
            (
                "lenet",
                (3, 32, 32),
                {"all": 61581, "head": 425, "body": 61156, "linear": 58709, "projection": 58709, "features": 2872},
            ),
        ],
    )
    def test_sizes_counted_by_hand(self, text, shape, sizes):
        layout = build_model(text, shape, CLASSES).layout
        assert {part: layout.numbers(part).size for part in sizes} == sizes

    def test_an_unknown_part_offers_the_nearest(self, model):
        with pytest.raises(UnknownName, match="did you mean 'head'"):
            model.layout.part("heed")


def test_resnet34_has_the_size_of_its_paper_with_a_small_first_layer():
    model = build_model("resnet34", (3, 32, 32), 10)
    assert model.layout.size == 21_282_122
    assert model.layout.numbers("head").size == 5130


@pytest.mark.parametrize(
    ("text", "shape", "outputs", "wanted"),
    [
        # lcfl: convolutions 416 + 12,832, then 32 x 7 x 7 to 256 to 10
        ("cnn-lcfl", (1, 28, 28), 10, 416 + 12_832 + (1568 * 256 + 256) + 2570),
        ("cnn-lcfl", (1, 28, 28), 10, 417_482),
        ("cnn-lcfl(padding=0)", (1, 28, 28), 10, 147_146),
        # joint, fig. 3: 8 outputs (40 for EMNIST); 28 - 2 - 2 = 24 pooled to 12, or 28 - 4 - 2 = 22 pooled to 11
        ("cnn-joint", (1, 28, 28), 8, 32 * 10 + 64 * (32 * 9 + 1) + (64 * 144 + 1) * 128 + 129 * 8),
        ("cnn-joint(kernel=5)", (1, 28, 28), 40, 32 * 26 + 64 * (32 * 9 + 1) + (64 * 121 + 1) * 128 + 129 * 40),
        ("lenet", (3, 32, 32), 8, 6 * 76 + 16 * 151 + 401 * 120 + 121 * 84 + 85 * 8),
        ("mlp(512,128)", (1, 28, 28), 8, 785 * 512 + 513 * 128 + 129 * 8),
        ("mlp(2048,512)", (3, 32, 32), 8, 3073 * 2048 + 2049 * 512 + 513 * 8),
        # thesis, tables A.1 and A.2
        ("cnn", (1, 28, 28), 10, 16 * 26 + 32 + 32 * 401 + 64 + (7 * 7 * 32 + 1) * 10),
        ("lenet", (3, 32, 32), 10, 6 * 76 + 16 * 151 + 401 * 120 + 121 * 84 + 85 * 10),
    ],
)
def test_the_papers_networks_have_the_papers_sizes(text, shape, outputs, wanted):
    assert build_model(text, shape, outputs).layout.size == wanted


class TestDefaults:
    @pytest.mark.parametrize(
        ("shape", "text"),
        [((30,), "mlp(64)"), ((1, 8, 8), "mlp(64)"), ((1, 28, 28), "cnn"), ((3, 32, 32), "lenet"), ((8, 8), "mlp(64)")],
    )
    def test_the_default_follows_the_shape(self, shape, text):
        assert default_for(shape) == text
        assert build_model(None, shape, CLASSES).text == text

    def test_regression_has_one_output(self):
        assert build_model("linear", (3,), None).layout.size == 4

    def test_dense_nets_learn_faster_by_default_than_convolutions(self):
        rates = [build_model(text, (1, 12, 12), CLASSES).default_lr for text in ("mlp", "cnn")]
        assert rates == [0.1, 0.01]

    @pytest.mark.parametrize(("text", "lockstep"), [("mlp", True), ("lenet", True), ("cnn", False), ("tabular", False)])
    def test_only_nets_that_treat_examples_apart_go_in_lockstep(self, text, lockstep):
        assert build_model(text, (1, 32, 32), CLASSES).can_lockstep is lockstep

    def test_flops_of_a_linear_layer_are_two_per_weight(self):
        assert build_model("mlp(3)", (4,), CLASSES).flops == 2 * (4 * 3 + 3 * CLASSES)


USERS = """
from torch import nn
import torch

class Named(nn.Module):
    def __init__(self, inner, outputs):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(inner, 3), nn.ReLU(), nn.Linear(3, outputs))
        self.last = nn.Linear(inner, inner)

    def forward(self, x):
        return self.head(self.last(x))

def named(shape, outputs):
    return Named(shape[0], outputs)

def wide(shape, outputs, width=2):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, outputs))

def bare(shape, outputs):
    return nn.Linear(shape[0], outputs)

def frozen(shape, outputs):
    net = wide(shape, outputs)
    net[0].requires_grad_(False)
    return net

def narrow(shape, outputs):
    return nn.Linear(shape[0], outputs + 1)

def nothing(shape, outputs):
    return None

def untrainable(shape, outputs):
    return nn.Linear(shape[0], outputs).requires_grad_(False)

def noisy(shape, outputs):
    return nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout2d(0.2)), nn.Linear(shape[0], outputs))

def alpha(shape, outputs):
    return nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(shape[0], outputs))

class Global(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), training=self.training)

def hidden(shape, outputs):
    return Global(shape[0], outputs)

def failing(shape, outputs):
    raise AttributeError("no such thing")

class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))

def centred(shape, outputs):
    return Centred(shape[0], outputs)

constant = 3
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    (tmp_path / "users_nets.py").write_text(USERS)
    (tmp_path / "broken_nets.py").write_text("import a_module_that_is_nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: build_model(f"users_nets:{name}", (4,), CLASSES)
    for name in ("users_nets", "broken_nets"):
        sys.modules.pop(name, None)


class TestUsersModels:
    def test_arguments_in_the_text_reach_the_function(self, users):
        assert users("wide").layout.size == 4 * 2 + 2 + 2 * CLASSES + CLASSES
        assert users("wide(width=7)").layout.size == users("wide(7)").layout.size == 4 * 7 + 7 + 7 * CLASSES + CLASSES

    def test_a_net_that_looks_across_the_batch_is_not_trained_in_lockstep(self, users):
        assert not users("centred").can_lockstep
        assert users("wide").can_lockstep

    def test_chance_without_an_address_is_refused(self, users):
        before = torch.get_rng_state()
        with pytest.raises(ModelError, match="global generator"):
            users("hidden")
        assert torch.equal(before, torch.get_rng_state())

    def test_a_module_may_name_its_head(self, users):
        model = users("named")
        assert head_of(model.module()) == "head"
        assert model.layout.numbers("head").size == 4 * 3 + 3 + 3 * CLASSES + CLASSES
        assert model.layout.numbers("head_weight").size == 4 * 3 + 3 * CLASSES
        assert model.layout.numbers("body").size == 4 * 4 + 4

    def test_a_head_that_does_not_come_last_is_still_put_back_together(self, users):
        model = users("named")
        module = model.module()
        assert torch.equal(outputs(model.with_row(*model.flatten(module)), (4,)), outputs(module, (4,)))

    def test_a_bare_linear_layer_is_its_own_head(self, users):
        layout = users("bare").layout
        sizes = {part: layout.numbers(part).size for part in ("head", "head_weight", "body", "linear")}
        assert sizes == {"head": 25, "head_weight": 20, "body": 0, "linear": 25}

    def test_frozen_parameters_stay_out_of_the_vector_and_are_the_same_everywhere(self, users):
        model = users("frozen")
        assert model.layout.size == 2 * CLASSES + CLASSES
        row = model.initial(0)
        nets = [model.with_row(*row), users("frozen").with_row(*row)]
        assert torch.equal(nets[0][0].weight, nets[1][0].weight)

    def test_dropout_is_replaced_at_every_depth_by_one_with_an_address(self, users):
        layers = [m for m in users("noisy").module().modules() if isinstance(m, AddressedDropout)]
        assert [(layer.p, layer.channels) for layer in layers] == [(0.5, False), (0.2, True)]

    def test_addressed_dropout_drops_the_right_share_and_keeps_the_mean(self):
        layer = AddressedDropout(0.25)
        layer.generator.manual_seed(0)
        x = layer(torch.ones(100_000))
        assert (x == 0).float().mean() == pytest.approx(0.25, abs=0.01)
        assert x.mean() == pytest.approx(1, abs=0.01)

    def test_dropout_of_channels_drops_whole_ones(self):
        x = AddressedDropout(0.5, channels=True)(torch.ones(8, 16, 3, 3))
        assert set(x.flatten(2).mean(-1).unique().tolist()) == {0.0, 2.0}


class TestErrorsSayWhatToDo:
    @pytest.mark.parametrize(
        ("text", "shape", "kind", "words"),
        [
            ("lenett", (1, 28, 28), UnknownName, r"'lenett'; did you mean 'lenet'\?"),
            ("lenet", (1, 8, 8), ModelError, r"'lenet' cannot be built for examples of shape \(1, 8, 8\)"),
            ("cnn", (30,), ModelError, r"needs images of shape \(channels, height, width\), not \(30,\); use mlp"),
            ("resnet34", (30,), ModelError, r"'resnet34' does not fit examples of shape \(30,\)"),
            ("mlp(-3)", (30,), ModelError, r"'mlp\(-3\)' cannot be built"),
            ("mlp(wide)", (30,), UsageError, "hidden is wide; it must be a whole number"),
            ("tabular(widht=3)", (30,), UnknownName, "did you mean 'width'"),
            ("nowhere_at_all:net", (30,), ModelError, "'nowhere_at_all'.*is it on PYTHONPATH"),
            ("torch.nn:Linearr", (30,), ModelError, "'torch.nn' has no function 'Linearr'.*write module:function"),
        ],
    )
    def test_where_a_text_cannot_be_built(self, text, shape, kind, words):
        with pytest.raises(kind, match=words):
            build_model(text, shape, CLASSES)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("narrow", r"outputs of shape \(6,\) an example; these data need \(5,\): make its last layer 5 wide"),
            ("nothing", "must build a torch.nn.Module, not NoneType"),
            ("untrainable", "no trainable parameter"),
            ("wide(depth=3)", "depth"),
            ("alpha", "AlphaDropout draws from a global generator; use nn.Dropout"),
            ("constant", "no function"),
            ("failing", "AttributeError: no such thing"),
        ],
    )
    def test_where_a_user_s_net_does_not_fit(self, users, name, words):
        with pytest.raises(ModelError, match=words) as error:
            users(name)
        assert f"users_nets:{name}" in str(error.value)

    def test_where_a_user_s_module_cannot_be_imported(self, users):
        with pytest.raises(ModelError, match=r"'broken_nets'.*a_module_that_is_nowhere"):
            build_model("broken_nets:net", (4,), CLASSES)
