"""E-Dropout (Tan 2019): environment dropout, imitation with reinforcement, and back-translation.

The agent is ``basic``, the baseline of the paper and of this family:

    v_t = sum_k softmax_k(u_k . W h~_{t-1}) u_k,   h_t, c_t = LSTM([W p_t, v_t], h~_{t-1}, c_{t-1})
    h~_t = tanh(W [sum_l softmax_l(x_l . W h_t) x_l, h_t]),   logit_k = u_k . W h~_t,   stop is the row u = 0

v_t is a sum over 36 views, p_t where the agent looks. Loss: .2 teacher forcing + A2C. In a second training,
begun with the weights of the first, a speaker describes paths of the training buildings under environment
dropout, which drops the same visual columns of all views of a walk as if it led through another building, and
the agent learns from them under the same mask (.6 teacher forcing + A2C). Read in the released code.
Difference: people's instructions are walked under one mask, too, where the release drops numbers of every
view by themselves.

The row is ``basic`` under another name; ``--speaker RUN`` and ``--begin RUN`` are its back-translation.
"""

from __future__ import annotations

from scenemem.extend import PRESETS, PUBLISHED

ROWS = {"e-dropout": PRESETS["basic"]}
AS_PUBLISHED = {"e-dropout": PUBLISHED["basic"]}
